"""Decides, from what one node's supervisor sees, whether the gang is over and why. Pure: no clock, no files.

Fault words are those of ``domain.health.FaultKind``.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_llmsched.agent.collect import RankView

STOPPED = "stopped"
ABORTED = "aborted"
TERMINATED = "terminated"
DONE = "done"

_SHOWN_LINES = 20

WORD_LIMIT_S = 2.0
"""How long a helper's failure waits for word that the trainers are done. A gang that fails by it does so this late."""


class Peer(NamedTuple):
    """Another node of the gang, or, where one speaks for them, all others.

    ``here``: its supervisor is there; ``armed``: all its ranks stand ready; ``done``: all its trainers, if it has any,
    have exited 0; ``ending``: it, or one that is spoken for, has trainers and all of them did; ``gone``: its supervisor
    has vanished, and ``how`` that is known.
    """

    here: bool = False
    armed: bool = False
    started: bool = False
    done: bool = False
    ending: bool = False
    gone: bool = False
    terminated: bool = False
    how: str = "its supervisor is gone and left no word"

    @property
    def stage(self) -> int:
        """How far its start has come."""
        return 3 if self.started else 2 if self.armed else 1 if self.here else 0


_STARTED = Peer(started=True)


class LauncherEnd(NamedTuple):
    """How a launcher ended (exit code, or minus the signal) and the last lines it wrote."""

    code: int
    log_tail: str


class View(NamedTuple):
    """Everything the decision rests on. Times are Unix seconds, limits seconds.

    ``num_ranks`` are this node's trainers, ``helpers`` the numbers of its members that are none.
    """

    now_s: float
    node: str
    num_ranks: int
    ranks: Mapping[int, RankView]
    go_at_s: float
    start_limit_s: float
    exit_grace_s: float
    peers: Mapping[str, Peer]
    launcher_ends: Sequence[LauncherEnd] = ()
    notices: Mapping[str, float] = {}
    stop_asked: bool = False
    abort: Mapping[str, Any] | None = None
    terminated: bool = False
    lease_expired: bool = False
    lease_until_s: float = 0.0
    trouble: Verdict | None = None
    helpers: frozenset[int] = frozenset()


class Verdict(NamedTuple):
    """The gang is over for this node. ``fault`` and ``reason`` are None and empty for a success or a stop."""

    outcome: str
    fault: str | None = None
    reason: str = ""
    rank: int | None = None


def decide(view: View) -> Verdict | None:
    """Return why the gang is over, or None while it is not. What others have already decided comes first."""
    if view.stop_asked:
        return Verdict(STOPPED)
    if view.abort is not None:
        return Verdict(ABORTED, view.abort["fault"], view.abort["reason"], view.abort["rank"])
    if view.trouble is not None:
        return view.trouble
    for check in (_terminated, _failed_rank, _launcher_ended, _left_early, _start_limit, _lost_peer, _fence, _done):
        verdict = check(view)
        if verdict is not None:
            return verdict
    return None


def all_armed(view: View) -> bool:
    """Whether every rank and helper of this node stands ready, or has started."""
    return sum(1 for rank in view.ranks.values() if rank.wrapper) >= view.num_ranks + len(view.helpers)


def all_started(view: View) -> bool:
    """Whether every rank and helper of this node has started."""
    num_started = sum(1 for rank in view.ranks.values() if rank.started_at_s is not None)
    return num_started >= view.num_ranks + len(view.helpers)


def all_done(view: View) -> bool:
    """Whether every rank of this node has exited 0."""
    return sum(1 for rank in _trainers(view) if _exited_0(rank)) >= view.num_ranks


def describe_end(end: Mapping[str, Any], *, node: str) -> str:
    """Say how a rank ended, for people."""
    member = end.get("who") or f"rank {end['rank']}"
    who = f"{member} on node {node}"
    if end.get("start_error"):
        return f"{who} did not start: {end['start_error']}"
    if end["signal"] is not None:
        return f"{who} was ended by {signal_name(end['signal'])}"
    return f"{who} exited with code {end['exit_code']}"


def signal_name(number: int) -> str:
    """Return a signal's name, e.g. ``SIGKILL (signal 9)``."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _terminated(view: View) -> Verdict | None:
    if not view.terminated:
        return None
    return _node_taken(view, view.node) or Verdict(
        TERMINATED, "node_lost", f"the supervisor of node {view.node} was told to end (SIGTERM)"
    )


def _failed_rank(view: View) -> Verdict | None:
    ended = [rank for rank in view.ranks.values() if rank.end is not None and not _exited_0(rank)]
    failed = [rank.end for rank in ended if rank.end is not None and not _is_excused(rank.end, view)]
    if not failed:
        return None
    first = min(failed, key=lambda end: (end["at_s"], end["rank"]))
    reason = describe_end(first, node=view.node)
    if first.get("start_error"):
        return Verdict(ABORTED, "start_failed", reason, first["rank"])
    if first["signal"] in (signal.SIGTERM, signal.SIGKILL) and (taken := _node_taken(view, view.node)):
        return taken
    if first["signal"] == signal.SIGTERM and view.node in view.notices:
        return _taken(view.node, view)  # a platform that says when it takes the node may tell the ranks at once
    return Verdict(ABORTED, "rank_failed", reason, first["rank"])


def _is_excused(end: Mapping[str, Any], view: View) -> bool:
    """Whether a helper's failure does not count, or not yet: one that loses its trainers may fail for that alone.

    Once a trainer has exited 0 all must, within the exit grace, or the gang fails for that; word of it takes a moment.
    """
    if end["rank"] not in view.helpers or end.get("start_error"):
        return False
    is_ending = any(_exited_0(rank) for rank in _trainers(view)) or any(peer.ending for peer in view.peers.values())
    return is_ending or view.now_s < end["at_s"] + WORD_LIMIT_S


def _trainers(view: View) -> list[RankView]:
    return [rank for number, rank in view.ranks.items() if number not in view.helpers]


def _launcher_ended(view: View) -> Verdict | None:
    failed = [end for end in view.launcher_ends if end.code != 0]
    if not failed or all_done(view):
        return None
    end = failed[0]
    how = signal_name(-end.code) if end.code < 0 else f"code {end.code}"
    if not all_started(view):
        text = f"the launcher of node {view.node} ended with {how} before all its ranks had started"
        if "EADDRINUSE" in end.log_tail or "address already in use" in end.log_tail.lower():
            text = f"port in use: {text}"
        return Verdict(ABORTED, "start_failed", f"{text}; its last lines:\n{_last(end.log_tail)}")
    if view.node in view.notices:
        return _taken(view.node, view)
    return Verdict(ABORTED, "node_lost", f"the launcher of node {view.node} ended with {how} while its ranks ran")


def _last(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])


def _left_early(view: View) -> Verdict | None:
    left = [rank.end for rank in _trainers(view) if rank.end is not None and _exited_0(rank)]
    if not left or (all_done(view) and all(peer.done for peer in view.peers.values())):
        return None
    first = min(left, key=lambda end: (end["at_s"], end["rank"]))
    if view.now_s < first["at_s"] + view.exit_grace_s:
        return None
    reason = (
        f"rank {first['rank']} on node {view.node} exited with code 0 early: "
        f"others were still running {view.exit_grace_s:g} s later"
    )
    return Verdict(ABORTED, "rank_exited_early", reason, first["rank"])


def _start_limit(view: View) -> Verdict | None:
    if view.now_s < view.go_at_s + view.start_limit_s:
        return None
    own = Peer(here=True, armed=all_armed(view), started=all_started(view))
    stages = {view.node: own.stage, **{node: peer.stage for node, peer in view.peers.items()}}
    least = min(stages.values())
    if least == _STARTED.stage:
        return None
    names = ", ".join(node for node, stage in stages.items() if stage == least)  # those the others wait for
    return Verdict(ABORTED, "start_timeout", f"not all ranks started within {view.start_limit_s:g} s: node {names}")


def _lost_peer(view: View) -> Verdict | None:
    for node, peer in view.peers.items():
        if peer.gone or peer.terminated:
            return _node_taken(view, node) or Verdict(ABORTED, "node_lost", f"node {node} vanished: {peer.how}")
    return None


def _fence(view: View) -> Verdict | None:
    if not view.lease_expired:
        return None
    reason = (
        f"the lease ran out at {view.lease_until_s:.3f} and was not renewed: node {view.node} ended its ranks itself"
    )
    return Verdict(ABORTED, "gang_lost", reason)


def _done(view: View) -> Verdict | None:
    if all_done(view) and all(peer.done for peer in view.peers.values()):
        return Verdict(DONE)
    return None


def _node_taken(view: View, node: str) -> Verdict | None:
    deadline_s = view.notices.get(node)
    if deadline_s is None or view.now_s < deadline_s:
        return None
    return _taken(node, view)


def _taken(node: str, view: View) -> Verdict:
    outcome = TERMINATED if node == view.node else ABORTED
    return Verdict(outcome, "preempted", f"node {node} was preempted")


def _exited_0(rank: RankView) -> bool:
    return rank.end is not None and rank.end["exit_code"] == 0
