"""The node supervisor: starts one node's ranks, watches over them, reports for them, and ends all of them.

``python -m airflow_llmsched.agent.supervisor GANG_DIR NODE`` returns once the supervisor proper, detached from whoever
called, has claimed the node. It ends when the gang does: every process it started is gone before it writes exit.json.

With ``--foreground`` it stays the caller's child, for a platform that owns the processes of its jobs; and with
``--notice-grace-s=N``, SIGTERM and SIGUSR1 are that platform's word that it takes the node N seconds later: ranks go on
until they are done or killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import launch, proc, wire
from airflow_llmsched.agent.children import Children
from airflow_llmsched.agent.collect import Collector
from airflow_llmsched.agent.fence import Lease, Orders
from airflow_llmsched.agent.gangdir import GangDir, NodeDir, is_full
from airflow_llmsched.agent.link import DirectoryLink, Link
from airflow_llmsched.agent.peer_open import are_machines, holding, join
from airflow_llmsched.agent.peers import Heard, Peers
from airflow_llmsched.agent.redact import redact, secrets_of
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.scratch import Scratch, disk_of
from airflow_llmsched.agent.spool import create_json, read_json, tail, write_json
from airflow_llmsched.agent.watch import (
    ABORTED,
    DONE,
    STOPPED,
    LauncherEnd,
    Verdict,
    View,
    all_armed,
    all_done,
    all_started,
    decide,
)

TAIL_LINES = 20
_LAUNCHER_TAIL_LINES = 200  # the cause stands above torchrun's long traceback
_TICK_S = 0.1
_READY_TICK_S = 0.02
_LAUNCHER_LIMIT_S = 3.0
_WATCHED_SLACK_S = 30.0
"""How much longer a node waits for the start of all when another watches over that, which knows whom to blame."""
_CENSUS_INTERVAL_S = 2.0
_LAST_REPORT_LIMIT_S = 10.0
_LAST_REPORT_OF_A_STOP_LIMIT_S = 1.0
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_NOTICE_GRACE = "--notice-grace-s="


class Supervisor:
    """One node's part of one attempt, from go to exit record."""

    def __init__(
        self,
        gang: GangDir,
        request: dict[str, Any],
        *,
        node: str,
        identity: proc.Process,
        link: Link,
        peers: Peers,
        notice_grace_s: float | None = None,
    ) -> None:
        self._notice_grace_s = notice_grace_s
        self._gang = gang
        self._dir = gang.node(node)
        self._node = node
        self._identity = identity
        self._submitted_at_s = float(request["submitted_at_s"])
        self._body: dict[str, Any] = request["body"]
        self._grace_s = float(self._body["grace_s"])
        self._part = next(each for each in self._body["nodes"] if each["node"] == node)
        self._helpers = frozenset(each["member"] for each in self._part.get("helpers", ()))
        self._peers = peers
        # What waited in a queue was submitted long ago, by another machine's clock.
        self._begun_at_s = time.time() if are_machines(self._body) else self._submitted_at_s
        self._link = link
        self._lease = Lease(
            lease_s=self._body["lease_s"], start_s=self._submitted_at_s, now_s=time.time(), elapsed_s=proc.uptime_s()
        )
        self._orders = Orders(self._dir.spool)
        self._collector = Collector(self._dir.spool, node=node, num_trainers=self._body["world_size"])
        self._secrets = secrets_of(os.environ, self._body["environment"])
        self._children = Children(log=self._dir.launcher_log)
        self._site: launch.Site | None = None
        self._scratch: Scratch | None = None
        self._has_daemon = False
        self._terminated = False
        self._trouble: Verdict | None = None
        self._heard = Heard()
        self._said = ""
        self._go_at_s: float | None = None
        self._next_flush_s = 0.0  # by the monotonic clock, like the next: the wall clock may jump by an hour
        self._next_census_s = 0.0
        self._unmarked: list[proc.Process] = []
        self._is_armed = False
        self._is_open = False
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
            got = self._rest()
            if got is not None and got != signal.SIGCHLD:
                self._hear(got)
            self._children.reap()

    def _rest(self) -> int | None:
        """Wait for a signal or a tick. Ranks that stand ready wait no longer than they must."""
        until_s = time.monotonic() + min(_TICK_S, self._body["flush_interval_s"])
        got = None
        while got is None and (left_s := until_s - time.monotonic()) > 0:
            stands_ready = self._is_armed and not self._is_open
            got = proc.next_signal(_SIGNALS, timeout_s=min(left_s, _READY_TICK_S) if stands_ready else left_s)
            if stands_ready:
                self._open_gate()
        return got

    def _open_gate(self) -> None:
        with self._disk():
            begin_s = self._peers.beginning()
            if begin_s is not None and self._peers.stop() is None and self._peers.abort() is None:
                write_json(self._dir.spool / wire.GATE, {"v": wire.VERSION, "begin_s": begin_s})
                self._is_open = True

    def _hear(self, got: int) -> None:
        """A platform that gives notice says so again before it kills: the first deadline holds."""
        if got == signal.SIGINT or (got == signal.SIGTERM and self._notice_grace_s is None):
            self._terminated = True
        elif self._notice_grace_s is not None:
            now_s = time.time()
            with self._disk():
                notice = {"v": wire.VERSION, "at_s": now_s, "deadline_s": now_s + self._notice_grace_s}
                create_json(self._dir.notice, notice)

    def _step(self) -> Verdict | None:
        now_s = time.time()
        down = self._link.down()
        expired = self._lease.expired(down.lease_until_s, now_s=now_s, elapsed_s=proc.uptime_s())
        with self._disk():
            if not self._gang.request.exists():
                reason = f"node {self._node}: {self._gang.path} was deleted under its running gang"
                self._trouble = Verdict(ABORTED, "gang_lost", reason)
            if self._go_at_s is None:
                self._link.ready()  # a channel that cannot be used fails the start; later it costs reports, no more
                self._launch(lease_expired=expired)
            self._start_daemon()
            self._orders.forward(down.orders, self._heard.notices)
            self._collector.read()
            self._note_vanished_wrappers()
            if time.monotonic() >= self._next_flush_s:
                self._next_flush_s = time.monotonic() + self._body["flush_interval_s"]
                self._flush(now_s)
            if time.monotonic() >= self._next_census_s:
                self._next_census_s = time.monotonic() + _CENSUS_INTERVAL_S
                self._note_unmarked()
        self._listen()
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
            elif str(error) != self._said:  # it comes with every tick
                self._said = str(error)
                say(f"llmsched: node {self._node}: {error}; trying again")

    def _listen(self) -> None:
        """Read what others say. While that cannot be read, what they said before stands; the lease fences us."""
        with self._disk():
            self._heard = Heard(
                others=self._peers.others(),
                notices=self._peers.notices(),
                stop=self._peers.stop(),
                abort=self._peers.abort(),
            )

    def _launch(self, *, lease_expired: bool) -> None:
        """Start the ranks once every node of the gang is there to start its own.

        Whoever stops the gang writes that down before it looks for claims, and we have claimed before we look for a
        stop: so either it waits for us, or we start nothing.
        """
        if self._peers.stop() is not None or self._peers.abort() is not None:
            return
        if lease_expired:
            return  # one that has waited in a queue for longer than its lease has yet to hear that it is wanted
        meeting = self._peers.meeting()
        if meeting is None or time.time() >= self._begun_at_s + self._body["start_limit_s"]:
            return
        if launch.asks_for_daemons(self._body):
            self._scratch = Scratch(disk=disk_of({**os.environ, **self._body["environment"]}))
        self._site = launch.site_of(
            self._body,
            node=self._node,
            meeting=meeting,
            node_dir=self._dir.path,
            supervisor=self._identity.text(),
            base=os.environ,
            ports=self._peers.ports(),
            scratch=self._scratch,
        )
        try:
            self._children.start(launch.starts(self._site))
        except ValueError as error:
            self._trouble = Verdict(ABORTED, "start_failed", f"node {self._node} cannot start: {error}")
        self._go_at_s = time.time()

    def _start_daemon(self) -> None:
        """Start what the launcher on the first node wants on this one, once it says so."""
        if self._site is None or not launch.asks_for_daemons(self._body):
            return
        argv = self._peers.daemon()  # also after its own: the first node passes on what others are to run
        if argv is None or self._has_daemon:
            return
        self._has_daemon = True
        try:
            self._children.start([launch.daemon(self._site, argv)])
        except ValueError as error:
            self._trouble = Verdict(ABORTED, "start_failed", f"node {self._node} cannot start: {error}")

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
        # A helper's end is its record's to tell, unless it ended too early to write one.
        ended = self._children.codes(with_helpers=not self._is_started)
        log_tail = self._last_lines(self._dir.launcher_log, _LAUNCHER_TAIL_LINES) if ended else ""
        return View(
            now_s=now_s,
            node=self._node,
            num_ranks=len(self._part["ranks"]),
            helpers=self._helpers,
            ranks=self._collector.ranks,
            go_at_s=self._begun_at_s if self._go_at_s is None else self._go_at_s,
            start_limit_s=self._body["start_limit_s"] + (_WATCHED_SLACK_S if self._peers.is_watched() else 0.0),
            exit_grace_s=self._body["exit_grace_s"],
            peers=self._heard.others,
            launcher_ends=[LauncherEnd(code, log_tail) for code in ended],
            notices=self._heard.notices,
            stop_asked=self._heard.stop is not None,
            abort=self._heard.abort,
            terminated=self._terminated,
            lease_expired=lease_expired and not self._is_awaited(),
            lease_until_s=self._lease.until_s,
        )

    def _is_awaited(self) -> bool:
        """Whether the start limit alone watches over a node that has nothing to fence yet."""
        return self._go_at_s is None and are_machines(self._body)

    def _publish(self, view: View) -> None:
        if not self._is_armed and self._go_at_s is not None and all_armed(view):
            self._peers.armed(at_s=view.now_s)
            self._is_armed = True
        if not self._is_started and self._go_at_s is not None and all_started(view):
            self._peers.started(at_s=view.now_s)
            self._is_started = True
        if not self._is_done and all_done(view):
            self._peers.done(at_s=view.now_s)
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
        with self._disk():
            self._heard = self._heard._replace(stop=self._peers.stop(), abort=self._peers.abort())
        verdict = self._announce(verdict)
        self._peers.leave(verdict.outcome)
        if verdict.outcome == DONE:
            self._let_launchers_finish()
        ended_before = {rank for rank, view in self._collector.ranks.items() if view.end is not None}
        self._end_tree()
        if self._scratch is not None:
            self._scratch.remove()
        with self._disk():
            self._collector.read()
            self._note_vanished_wrappers()
        limit_s = _LAST_REPORT_OF_A_STOP_LIMIT_S if verdict.outcome == STOPPED else _LAST_REPORT_LIMIT_S
        self._peers.close(limit_s=limit_s)
        with self._disk():
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
            "ahead_s": self._peers.ahead_s(),
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
        while self._children.are_trainers_left and time.monotonic() < limit_s:
            proc.next_signal((signal.SIGCHLD,), timeout_s=_TICK_S)
            self._children.reap()

    def _announce(self, verdict: Verdict) -> Verdict:
        """Tell the other nodes, unless one of them said so first. A failure on a full disk is the disk's."""
        if verdict.fault is None or self._heard.abort is not None:
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
            self._peers.announce(abort)
        except OSError as error:
            say(f"llmsched: node {self._node}: cannot announce {verdict}: {error}")
        return verdict

    def _end_tree(self) -> None:
        """End everything: launchers first, their descendants next, then whatever carries our marks."""
        stop = self._heard.stop
        grace_s = self._grace_s if stop is None else float(stop["grace_s"])
        marks = self._gang.marks(self._body["attempt_name"], self._node)
        me = os.getpid()

        def find() -> list[proc.Process]:
            return [*proc.descendants(me), *proc.marked(marks)]

        left = proc.end_all(find, grace_s=grace_s, reap=self._children.reap)
        self._children.reap()
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
    """Detach, claim the node, supervise. Returns in the caller's child once the claim stands (0) or failed (1).

    In the foreground it returns when the gang has ended.
    """
    places = [each for each in argv if not each.startswith("--")]
    options = [each for each in argv if each.startswith("--")]
    graces = [float(each.removeprefix(_NOTICE_GRACE)) for each in options if each.startswith(_NOTICE_GRACE)]
    if len(places) != 2 or {each for each in options if not each.startswith(_NOTICE_GRACE)} - {"--foreground"}:
        say(f"usage: python -m airflow_llmsched.agent.supervisor [--foreground [{_NOTICE_GRACE}N]] GANG_DIR NODE")
        return 2
    gang, node = GangDir(Path(places[0])), places[1]
    if "--foreground" in options:
        _settle(gang, node)
        _supervise(gang, node, claimed=lambda: None, notice_grace_s=graces[-1] if graces else None)
        return 0
    return _detached(gang, node)


def _detached(gang: GangDir, node: str) -> int:
    reader, writer = os.pipe()
    if os.fork() != 0:
        os.close(writer)
        return 0 if os.read(reader, 1) == b"+" else 1
    os.close(reader)
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _settle(gang, node)
        _supervise(gang, node, claimed=lambda: _say(writer))
    except BaseException:  # noqa: BLE001  (a forked child must never return into its parent's code)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _settle(gang: GangDir, node: str) -> None:
    os.umask(0o077)
    os.chdir(gang.node(node).path)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    proc.become_subreaper()


def _say(writer: int) -> None:
    """Let the caller's child go, and see it off: it carries our marks, and must not be taken for a process to end."""
    caller = os.getppid()
    os.write(writer, b"+")
    os.close(writer)
    while os.getppid() == caller:
        time.sleep(0.001)


def _supervise(gang: GangDir, node: str, *, claimed: Callable[[], None], notice_grace_s: float | None = None) -> None:
    request = read_json(gang.request)
    if request is None:
        raise FileNotFoundError(f"{gang.request} is missing: {gang.path} is no attempt's directory")
    identity = proc.myself()
    link = open_link(request["body"], node=node)  # before the claim: without a way to control, nothing may start
    follow_metadata(gang.node(node), node=node)
    body = request["body"]
    with holding(gang, body, node=node) as held:
        is_ours = gang.node(node).claim(
            identity, at_s=time.time(), port=held.port, peers_port=held.peers_port, ports=held.ports
        )
        claimed()
        if is_ours:
            peers = join(gang, body, node=node, held=held, wake=_wake)
            Supervisor(
                gang, request, node=node, identity=identity, link=link, peers=peers, notice_grace_s=notice_grace_s
            ).run()


def _wake() -> None:
    """Have the supervisor look at once: what it waits for is a signal."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
