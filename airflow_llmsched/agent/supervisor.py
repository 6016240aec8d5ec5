"""The node supervisor: starts one node's ranks, watches over them, reports for them, and ends all of them.

``python -m airflow_llmsched.agent.supervisor GANG_DIR NODE`` returns once the supervisor proper, detached from whoever
called, has claimed the node. It ends when the gang does: every process it started is gone before it writes exit.json.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import launch, proc, wire
from airflow_llmsched.agent.collect import Collector
from airflow_llmsched.agent.fence import Lease, Orders
from airflow_llmsched.agent.gangdir import GangDir, NodeDir, is_full
from airflow_llmsched.agent.link import DirectoryLink, Link
from airflow_llmsched.agent.meeting import hold_port
from airflow_llmsched.agent.redact import redact, secrets_of
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.spool import create_json, read_json, tail, write_json
from airflow_llmsched.agent.watch import (
    ABORTED,
    DONE,
    STOPPED,
    LauncherEnd,
    Peer,
    Verdict,
    View,
    all_done,
    all_started,
    decide,
)

TAIL_LINES = 20
_LAUNCHER_TAIL_LINES = 200  # the cause stands above torchrun's long traceback
_TICK_S = 0.1
_LAUNCHER_LIMIT_S = 3.0
_CENSUS_INTERVAL_S = 2.0
_LAST_REPORT_LIMIT_S = 10.0
_LAST_REPORT_OF_A_STOP_LIMIT_S = 1.0
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """One node's part of one attempt, from go to exit record."""

    def __init__(
        self, gang: GangDir, request: dict[str, Any], *, node: str, identity: proc.Process, link: Link
    ) -> None:
        self._gang = gang
        self._dir = gang.node(node)
        self._node = node
        self._identity = identity
        self._submitted_at_s = float(request["submitted_at_s"])
        self._body: dict[str, Any] = request["body"]
        self._grace_s = float(self._body["grace_s"])
        self._num_ranks = next(len(each["ranks"]) for each in self._body["nodes"] if each["node"] == node)
        self._nodes = [each["node"] for each in self._body["nodes"]]
        self._peers = {name: gang.node(name) for name in self._nodes if name != node}
        self._peer_supervisors: dict[str, proc.Process] = {}
        self._link = link
        self._lease = Lease(lease_s=self._body["lease_s"], start_s=self._submitted_at_s)
        self._orders = Orders(self._dir.spool)
        self._collector = Collector(self._dir.spool, node=node)
        self._secrets = secrets_of(os.environ, self._body["environment"])
        self._launchers: dict[int, int | None] = {}
        self._terminated = False
        self._trouble: Verdict | None = None
        self._go_at_s: float | None = None
        self._next_flush_s = 0.0  # by the monotonic clock, like the next: the wall clock may jump by an hour
        self._next_census_s = 0.0
        self._unmarked: list[proc.Process] = []
        self._is_started = False
        self._is_done = False

    def run(self) -> None:
        """Start, watch, end. Whatever happens, nothing is left running and exit.json says why."""
        try:
            verdict = self._watch()
        except Exception:  # noqa: BLE001  (the last line of defence: the ranks must not outlive their supervisor)
            traceback.print_exc()
            reason = f"the supervisor of node {self._node} failed:\n{traceback.format_exc()}"
            verdict = Verdict(ABORTED, "node_lost", reason)
        self._finish(verdict)

    def _watch(self) -> Verdict:
        while True:
            verdict = self._step()
            if verdict is not None:
                return verdict
            got = proc.next_signal(_SIGNALS, timeout_s=min(_TICK_S, self._body["flush_interval_s"]))
            if got in (signal.SIGTERM, signal.SIGINT):
                self._terminated = True
            self._reap()

    def _step(self) -> Verdict | None:
        now_s = time.time()
        down = self._link.down()
        expired = self._lease.expired(down.lease_until_s, now_s=now_s)
        with self._disk():
            if not self._gang.request.exists():
                reason = f"node {self._node}: {self._gang.path} was deleted under its running gang"
                self._trouble = Verdict(ABORTED, "gang_lost", reason)
            if self._go_at_s is None:
                self._link.ready()  # a channel that cannot be used fails the start; later it costs reports, no more
                self._launch()
            self._orders.forward(down.orders, self._gang.notices(self._nodes))
            self._collector.read()
            self._note_vanished_wrappers()
            if time.monotonic() >= self._next_flush_s:
                self._next_flush_s = time.monotonic() + self._body["flush_interval_s"]
                self._flush(now_s)
            if time.monotonic() >= self._next_census_s:
                self._next_census_s = time.monotonic() + _CENSUS_INTERVAL_S
                self._note_unmarked()
        view = self._view(now_s, lease_expired=expired)
        with self._disk():
            self._publish(view)
        return decide(view._replace(trouble=self._trouble))

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn a full disk into a verdict that names the file; other trouble with files is tried again."""
        try:
            yield
        except OSError as error:
            if is_full(error):
                reason = f"node {self._node}: disk full: cannot write {error.filename}: {error.strerror}"
                self._trouble = self._trouble or Verdict(ABORTED, "disk_full", reason)
            elif self._go_at_s is None:
                self._trouble = Verdict(ABORTED, "start_failed", f"node {self._node} cannot start: {error}")
            else:
                say(f"llmsched: node {self._node}: {error}")

    def _launch(self) -> None:
        """Start the ranks once the engine says go: by then every node of the gang has its supervisor.

        Whoever stops the gang writes that down before it looks for claims, and we have claimed before we look for a
        stop: so either it waits for us, or we start nothing.
        """
        if self._gang.stop.exists() or self._gang.abort.exists():
            return
        meeting = self._gang.node(self._nodes[0]).port() if self._gang.go.exists() else None
        if meeting is None or time.time() >= self._submitted_at_s + self._body["start_limit_s"]:
            return
        starts = launch.starts(
            self._body,
            node=self._node,
            port=meeting,
            node_dir=self._dir.path,
            supervisor=self._identity.text(),
            base=os.environ,
        )
        for start in starts:
            self._launchers[launch.spawn(start, log=self._dir.launcher_log)] = None
        self._go_at_s = time.time()

    def _reap(self) -> None:
        """Collect what has ended: launchers, and orphans that we adopted."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._launchers:
                    self._launchers[pid] = os.waitstatus_to_exitcode(status)

    def _note_vanished_wrappers(self) -> None:
        """A rank whose wrapper is gone without a word was killed together with it."""
        vanished = [
            view
            for view in self._collector.ranks.values()
            if view.end is None and view.wrapper and not proc.alive(proc.Process.parse(view.wrapper))
        ]
        if not vanished:
            return
        self._collector.read()  # its last record may have come in between
        for view in vanished:
            if view.end is None:
                view.end = wire.end_record(rank=view.rank, exit_code=None, signal=int(signal.SIGKILL), at_s=time.time())

    def _note_unmarked(self) -> None:
        """Keep a record of descendants that cleared their environment: without us nobody could tell whose they are."""
        marks = self._gang.marks(self._body["attempt_name"], self._node)
        unmarked = [process for process in proc.descendants(os.getpid()) if not proc.carries(process, marks)]
        if unmarked != self._unmarked:
            self._dir.note_unmarked(unmarked)
            self._unmarked = unmarked

    def _view(self, now_s: float, *, lease_expired: bool) -> View:
        ended = [code for code in self._launchers.values() if code is not None]
        log_tail = self._last_lines(self._dir.launcher_log, _LAUNCHER_TAIL_LINES) if ended else ""
        return View(
            now_s=now_s,
            node=self._node,
            num_ranks=self._num_ranks,
            ranks=self._collector.ranks,
            go_at_s=self._submitted_at_s if self._go_at_s is None else self._go_at_s,
            start_limit_s=self._body["start_limit_s"],
            exit_grace_s=self._body["exit_grace_s"],
            peers={name: self._peer(name) for name in self._peers},
            launcher_ends=[LauncherEnd(code, log_tail) for code in ended],
            notices=self._gang.notices(self._nodes),
            stop_asked=self._gang.stop.exists(),
            abort=read_json(self._gang.abort),
            terminated=self._terminated,
            lease_expired=lease_expired,
            lease_until_s=self._lease.until_s,
        )

    def _peer(self, name: str) -> Peer:
        peer = self._peers[name]
        if name not in self._peer_supervisors:
            supervisor = peer.supervisor()
            if supervisor is None:
                return Peer()  # not there yet: the start limit watches over that
            self._peer_supervisors[name] = supervisor
        is_alive = proc.alive(self._peer_supervisors[name])
        # Looked at after the process, so that an orderly end is never taken for a disappearance.
        end = None if is_alive else read_json(peer.exit)
        return Peer(
            started=peer.started.exists(),
            done=peer.done.exists(),
            gone=not is_alive and end is None,
            terminated=end is not None and end["outcome"] == "terminated",
        )

    def _publish(self, view: View) -> None:
        if not self._is_started and self._go_at_s is not None and all_started(view):
            write_json(self._dir.started, {"v": wire.VERSION, "at_s": view.now_s})
            self._is_started = True
        if not self._is_done and all_done(view):
            write_json(self._dir.done, {"v": wire.VERSION, "at_s": view.now_s})
            self._is_done = True

    def _flush(self, now_s: float) -> None:
        write_json(self._dir.alive, {"v": wire.VERSION, "at_s": now_s})  # also finds out whether the disk is full
        is_ready = False
        try:
            is_ready = self._link.ready()
        finally:
            if not is_ready:
                self._collector.defer()
        if is_ready:
            self._link.send(self._collector.report(now_s=now_s))

    def _finish(self, verdict: Verdict) -> None:
        verdict = self._announce(verdict)
        if verdict.outcome == DONE:
            self._let_launchers_finish()
        ended_before = {rank for rank, view in self._collector.ranks.items() if view.end is not None}
        self._end_tree()
        with self._disk():
            self._collector.read()
            self._note_vanished_wrappers()
        with self._disk():
            limit_s = _LAST_REPORT_OF_A_STOP_LIMIT_S if verdict.outcome == STOPPED else _LAST_REPORT_LIMIT_S
            self._link.close(self._collector.report(now_s=time.time()), limit_s=limit_s)
        ends = [
            {
                **view.end,
                "forced": rank not in ended_before,
                "log_tail": self._last_lines(self._dir.logs / wire.rank_log_name(rank), TAIL_LINES),
            }
            for rank, view in sorted(self._collector.ranks.items())
            if view.end is not None
        ]
        record = {
            "v": wire.VERSION,
            "node": self._node,
            "at_s": time.time(),
            "outcome": verdict.outcome,
            "fault": verdict.fault,
            "reason": verdict.reason,
            "ends": ends,
        }
        self._dir.write_last(self._dir.exit, record)

    def _last_lines(self, path: Path, num_lines: int) -> str:
        return redact(tail(path, num_lines), self._secrets)

    def _let_launchers_finish(self) -> None:
        """Wait a moment for launchers whose ranks have all exited 0, so that they need not be told to end."""
        limit_s = time.monotonic() + _LAUNCHER_LIMIT_S
        while None in self._launchers.values() and time.monotonic() < limit_s:
            proc.next_signal((signal.SIGCHLD,), timeout_s=_TICK_S)
            self._reap()

    def _announce(self, verdict: Verdict) -> Verdict:
        """Tell the other nodes, unless one of them said so first. A failure on a full disk is the disk's."""
        if verdict.fault is None or self._gang.abort.exists():
            return verdict
        if verdict.fault == "rank_failed":
            with self._disk():
                write_json(self._dir.alive, {"v": wire.VERSION, "at_s": time.time()})
            if self._trouble is not None:
                verdict = self._trouble._replace(reason=f"{self._trouble.reason}; {verdict.reason}", rank=verdict.rank)
        abort = {
            "v": wire.VERSION,
            "node": self._node,
            "at_s": time.time(),
            "fault": verdict.fault,
            "reason": verdict.reason,
            "rank": verdict.rank,
        }
        try:
            self._dir.write_last(self._gang.abort, abort, once=True)
        except OSError as error:
            say(f"llmsched: node {self._node}: cannot announce {verdict}: {error}")
        return verdict

    def _end_tree(self) -> None:
        """End everything: launchers first, their descendants next, then whatever carries our marks."""
        stop = read_json(self._gang.stop)
        grace_s = self._grace_s if stop is None else float(stop["grace_s"])
        marks = self._gang.marks(self._body["attempt_name"], self._node)
        me = os.getpid()

        def find() -> list[proc.Process]:
            return [*proc.descendants(me), *proc.marked(marks)]

        left = proc.end_all(find, grace_s=grace_s, reap=self._reap)
        self._reap()
        if left:
            say(f"llmsched: node {self._node}: could not end {left}")


def open_link(body: dict[str, Any], *, node: str) -> Link:
    """Open the node's way to control: by presigned URLs when it was given a grant of them, else the directory."""
    links = body.get("channel_links")
    if links is None:
        return DirectoryLink(body["channel_root"], node=node)
    from airflow_llmsched.agent.http_link import HttpLink  # noqa: PLC0415  # loads ssl: not for a directory

    grant = Path(links) / f"{node}.json"
    return HttpLink(grant, node=node, flush_interval_s=body["flush_interval_s"], lease_s=body["lease_s"])


def follow_metadata(files: NodeDir, *, node: str) -> None:
    """Have this machine's own cloud say when it will be taken, where the environment names the cloud.

    Raises ``ValueError`` for one that is not known.
    """
    cloud = os.environ.get(wire.METADATA)
    if not cloud:
        return
    from airflow_llmsched.agent import metadata  # noqa: PLC0415  # loads ssl: only for rented machines

    def note(taken_at_s: float) -> None:
        create_json(files.notice, {"v": wire.VERSION, "at_s": time.time(), "deadline_s": taken_at_s})

    address = os.environ.get(wire.METADATA_ADDRESS) or metadata.ADDRESS
    metadata.follow(metadata.Metadata(cloud, address=address), note, node=node)


def main(argv: list[str]) -> int:
    """Detach, claim the node, supervise. Returns in the caller's child once the claim stands (0) or failed (1)."""
    if len(argv) != 2:
        say("usage: python -m airflow_llmsched.agent.supervisor GANG_DIR NODE")
        return 2
    gang, node = GangDir(Path(argv[0])), argv[1]
    reader, writer = os.pipe()
    if os.fork() != 0:
        os.close(writer)
        return 0 if os.read(reader, 1) == b"+" else 1
    os.close(reader)
    try:
        os.setsid()
        os.umask(0o077)
        os.chdir(gang.node(node).path)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        proc.become_subreaper()
        _supervise(gang, node, claimed=lambda: _say(writer))
    except BaseException:  # noqa: BLE001  (a forked child must never return into its parent's code)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _say(writer: int) -> None:
    """Let the caller's child go, and see it off: it carries our marks, and must not be taken for a process to end."""
    caller = os.getppid()
    os.write(writer, b"+")
    os.close(writer)
    while os.getppid() == caller:
        time.sleep(0.001)


def _supervise(gang: GangDir, node: str, *, claimed: Callable[[], None]) -> None:
    request = read_json(gang.request)
    if request is None:
        raise FileNotFoundError(f"{gang.request} is missing: {gang.path} is no attempt's directory")
    identity = proc.myself()
    link = open_link(request["body"], node=node)  # before the claim: without a way to control, nothing may start
    follow_metadata(gang.node(node), node=node)
    first = request["body"]["nodes"][0]["node"]
    with hold_port() if node == first else contextlib.nullcontext() as port:
        is_ours = gang.node(node).claim(identity, at_s=time.time(), port=port)
        claimed()
        if is_ours:
            Supervisor(gang, request, node=node, identity=identity, link=link).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
