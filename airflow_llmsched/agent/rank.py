"""The rank wrapper: runs one rank's command, keeps its output in the rank's log, and records how it started and ended.

``python -m airflow_llmsched.agent.rank -- COMMAND...`` works for commands that never import the agent. It passes
SIGTERM and SIGINT on to the command and what it started, and ends them when the node's supervisor has vanished.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.spool import LineWriter

_CANNOT_START = 127  # what a shell answers for a command it cannot run
_CHECK_S = 0.5
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class RankWrapper:
    """One rank's command, from start to end. The environment says which rank it is."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        self._rank = int(environ["RANK"])
        self._spool = Path(environ[wire.SPOOL])
        self._writer = LineWriter(str(self._spool / wire.rank_spool_name(self._rank)))
        self._log = self._spool.parent / wire.LOGS / wire.rank_log_name(self._rank)
        self._supervisor = proc.Process.parse(environ[wire.SUPERVISOR])
        self._pid = 0

    def run(self) -> int:
        """Run the command to its end; return its exit code, 128 + signal number, or 127 when it cannot start."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        proc.become_subreaper()
        try:
            self._start()
        except OSError as error:
            return self._refuse(error)
        status = self._wait()
        code = os.waitstatus_to_exitcode(status)
        self._record_end(exit_code=code if code >= 0 else None, number=-code if code < 0 else None)
        return code if code >= 0 else 128 - code

    def _start(self) -> None:
        started_s = time.time()
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pid = os.posix_spawnp(
            self._command[0],
            list(self._command),
            {**self._environ, wire.RANK_STARTED_S: repr(started_s)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setpgroup=0,
            setsigmask=(),
        )
        os.close(log)
        identity = proc.identify(self._pid)
        self._append(
            wire.start_record(
                rank=self._rank,
                local_rank=int(self._environ.get("LOCAL_RANK", "0")),
                pid=self._pid,
                start_ticks=identity.start_ticks if identity else 0,
                wrapper=proc.myself().text(),
                at_s=started_s,
            )
        )

    def _refuse(self, error: OSError) -> int:
        reason = f"cannot start {self._command[0]!r}: {error.strerror}"
        with contextlib.suppress(OSError), self._log.open("a") as log:
            log.write(f"llmsched: {reason}\n")
        self._append(
            wire.end_record(rank=self._rank, exit_code=_CANNOT_START, signal=None, at_s=time.time(), start_error=reason)
        )
        return _CANNOT_START

    def _wait(self) -> int:
        while True:
            got = proc.next_signal(_SIGNALS, timeout_s=_CHECK_S)
            if got is not None and got != signal.SIGCHLD:
                self._forward(got)
            status = self._reap()
            if status is not None:
                return status
            if not proc.alive(self._supervisor):
                return self._end_orphan()

    def _reap(self) -> int | None:
        """Collect what has ended, adopted orphans too; return the command's status once it has."""
        found = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._pid:
                    found = status
        return found

    def _forward(self, number: int) -> None:
        for process in proc.descendants(os.getpid()):
            proc.send(process, number)

    def _end_orphan(self) -> int:
        """End the command: nobody is left to watch it, and a successor may already be on its way."""
        statuses: list[int] = []

        def reap() -> None:
            status = self._reap()
            if status is not None:
                statuses.append(status)

        grace_s = float(self._environ.get(wire.GRACE_S, "0"))
        proc.end_all(lambda: proc.descendants(os.getpid()), grace_s=grace_s, reap=reap)
        reap()
        return statuses[0] if statuses else signal.SIGKILL

    def _record_end(self, *, exit_code: int | None, number: int | None) -> None:
        self._append(wire.end_record(rank=self._rank, exit_code=exit_code, signal=number, at_s=time.time()))

    def _append(self, record: dict[str, Any]) -> None:
        try:
            self._writer.append(record)
        except OSError as error:
            say(f"llmsched: rank {self._rank}: cannot write {self._spool}: {error}")


def main(argv: Sequence[str]) -> int:
    """Run the command after ``--``."""
    if len(argv) < 2 or argv[0] != "--":
        say("usage: python -m airflow_llmsched.agent.rank -- COMMAND...")
        return 2
    return RankWrapper(argv[1:], os.environ).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
