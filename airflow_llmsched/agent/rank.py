"""The rank wrapper: runs one rank's command, keeps its output in the rank's log, and records how it started and ended.

``python -m airflow_llmsched.agent.rank -- COMMAND...`` works for commands that never import the agent. It passes
SIGTERM and SIGINT on to the command and what it started, and ends them when the node's supervisor has vanished.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.spool import LineWriter, read_json

_CANNOT_START = 127  # what a shell answers for a command it cannot run
_CHECK_S = 0.5
_GATE_POLL_S = 0.02
_OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "RANK", "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK"}
_BEGIN_LIMIT_S = 1.0
"""No command waits longer once the moment is named: a container may count monotonic time from elsewhere."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class RankWrapper:
    """One rank's command, from start to end. The environment says which rank it is."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        self._rank = wire.member_of(environ)
        self._spool = Path(environ[wire.SPOOL])
        self._writer = LineWriter(str(self._spool / wire.rank_spool_name(self._rank)))
        self._log = self._spool.parent / wire.LOGS / wire.rank_log_name(self._rank)
        self._supervisor = proc.Process.parse(environ[wire.SUPERVISOR])
        self._pid = 0

    def run(self) -> int:
        """Run the command to its end; return its exit code, 128 + signal number, or 127 when it cannot start."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        proc.become_subreaper()
        if not is_there(self._command[0], self._environ):
            return self._refuse(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        self._append(wire.armed_record(rank=self._rank, wrapper=proc.myself().text(), at_s=time.time()))
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        number = self._wait_for_gate()
        if number is not None:
            self._record_end(exit_code=None, number=number)
            return 128 + number
        try:
            self._start(log)
        except OSError as error:
            return self._refuse(error)
        status = self._wait()
        code = os.waitstatus_to_exitcode(status)
        self._record_end(exit_code=code if code >= 0 else None, number=-code if code < 0 else None)
        return code if code >= 0 else 128 - code

    def _wait_for_gate(self) -> int | None:
        """Wait until all ranks of the gang stand ready; return the signal that came instead.

        What takes long, from the launcher's own start to its rendezvous, is done by then: commands start together.
        """
        begin_s = None
        next_check_s = time.monotonic() + _CHECK_S
        while begin_s is None or time.monotonic() < begin_s:
            if begin_s is None and (gate := read_json(self._spool / wire.GATE)) is not None:
                begin_s = min(gate["begin_s"], time.monotonic() + _BEGIN_LIMIT_S)
            wait_s = _GATE_POLL_S if begin_s is None else max(0.0, begin_s - time.monotonic())
            got = proc.next_signal(_SIGNALS, timeout_s=wait_s)
            if got is not None and got != signal.SIGCHLD:
                return got
            if time.monotonic() >= next_check_s:
                next_check_s = time.monotonic() + _CHECK_S
                if not proc.alive(self._supervisor):
                    return signal.SIGKILL
        return None

    def _start(self, log: int) -> None:
        started_s = time.time()
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
        self._record_end(exit_code=_CANNOT_START, number=None, start_error=reason)
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

    def _record_end(self, *, exit_code: int | None, number: int | None, start_error: str | None = None) -> None:
        role = self._environ.get(wire.ROLE, wire.TRAINER)
        self._append(
            wire.end_record(
                rank=self._rank,
                exit_code=exit_code,
                signal=number,
                at_s=time.time(),
                start_error=start_error,
                who=None if role == wire.TRAINER else f"{role} {self._environ['RANK']}",
            )
        )

    def _append(self, record: dict[str, Any]) -> None:
        try:
            self._writer.append(record)
        except OSError as error:
            say(f"llmsched: rank {self._rank}: cannot write {self._spool}: {error}")


def is_there(program: str, environ: Mapping[str, str]) -> bool:
    """Whether there is such a program: what cannot start here is found out before any rank starts anywhere."""
    folders = [""] if "/" in program else environ.get("PATH", os.defpath).split(os.pathsep)
    return any(Path(folder, program).exists() for folder in folders)


def placed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the rank's place in torch.distributed's words, whichever launcher started it."""
    known = dict(environ)
    known |= json.loads(known.pop(wire.OF_NODE, "{}"))
    if "RANK" not in known:
        known |= {ours: environ[name] for name, ours in _OPEN_MPI.items()}
    if wire.FIRST_RANK in known:
        known["LOCAL_RANK"] = str(int(known["RANK"]) - int(known[wire.FIRST_RANK]))
    return known


def main(argv: Sequence[str]) -> int:
    """Run the command after ``--``."""
    if len(argv) < 2 or argv[0] != "--":
        say("usage: python -m airflow_llmsched.agent.rank -- COMMAND...")
        return 2
    return RankWrapper(argv[1:], placed(os.environ)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
