from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FAILURE_CLASS, FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.agent_states import ORPHANS_END_S, PHASE, GangFacts, NodeFacts, status_of
from airflow_llmsched.errors import InternalError

NOW_S = 200.0


def node(name: str, **changes: Any) -> NodeFacts:
    base = {"claimed": True, "supervisor_alive": True, "started_at_s": 101.0, "alive_at_s": 150.0}
    return NodeFacts(node=NodeId(name), **{**base, **changes})


def end(
    rank: int, *, code: int | None = 0, signal: int | None = None, at_s: float = 160.0, **more: Any
) -> dict[str, Any]:
    base = {"rank": rank, "exit_code": code, "signal": signal, "at_s": at_s}
    return {**base, "forced": False, "log_tail": "", "start_error": None, **more}


def ended(name: str, outcome: str, *ends: dict[str, Any], at_s: float = 170.0, **changes: Any) -> NodeFacts:
    record = {"outcome": outcome, "reason": "", "at_s": at_s, "ends": list(ends)}
    return node(name, **{"supervisor_alive": False, "exit": record, **changes})


def gone(name: str, **changes: Any) -> NodeFacts:
    return node(name, **{"supervisor_alive": False, **changes})


def gang(*nodes: NodeFacts, **changes: Any) -> GangFacts:
    return GangFacts(nodes=nodes, submitted_at_s=100.0, start_limit_s=50.0, **{"go": True, **changes})


def abort(fault: str, *, rank: int | None = None, at_s: float = 161.0) -> dict[str, Any]:
    return {"fault": fault, "reason": f"because {fault}", "rank": rank, "at_s": at_s}


@pytest.mark.parametrize(
    ("nodes", "go", "phase"),
    [
        ([node("n0", claimed=False, supervisor_alive=False), node("n1", claimed=False)], False, GangPhase.PENDING),
        ([node("n0", started_at_s=None), node("n1", started_at_s=None)], False, GangPhase.PENDING),
        ([node("n0", started_at_s=None), node("n1")], True, GangPhase.STARTING),
        ([node("n0"), node("n1")], True, GangPhase.RUNNING),
        ([ended("n0", "done", end(0)), node("n1")], True, GangPhase.RUNNING),
        ([gone("n0", stray=True), ended("n1", "aborted")], True, GangPhase.RUNNING),
    ],
)
def test_live_gang_is_as_far_as_its_slowest_node(nodes: list[NodeFacts], go: bool, phase: GangPhase) -> None:
    status = status_of(gang(*nodes, go=go), now_s=110.0)
    assert status.phase is phase
    assert status.ended_at_s is None
    assert status.fault is None


def test_gang_whose_every_rank_exited_0_succeeded() -> None:
    status = status_of(gang(ended("n0", "done", end(0)), ended("n1", "done", end(1), at_s=171.0)), now_s=NOW_S)
    assert (status.phase, status.first_end, status.reason) == (GangPhase.SUCCEEDED, None, "")
    assert (status.started_at_s, status.ended_at_s) == (101.0, 171.0)


def test_earliest_failure_of_any_node_explains_the_gang_whoever_spoke_first() -> None:
    nodes = (
        ended("n0", "aborted", end(0, code=1, at_s=161.0), end(1, code=None, signal=15, at_s=162.0, forced=True)),
        ended("n1", "aborted", end(2, code=3, at_s=160.0, log_tail="nan\nbye"), end(3, code=1, at_s=163.0)),
    )
    status = status_of(gang(*nodes, abort=abort("rank_failed", rank=0)), now_s=NOW_S)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.RANK_FAILED)
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.node, status.first_end.exit_code) == (2, "n1", 3)
    assert status.reason == "rank 2 on node n1 exited with code 3; its last lines:\nnan\nbye"


def test_ranks_that_we_ended_are_nobodys_fault() -> None:
    nodes = (ended("n0", "aborted", end(0, code=None, signal=9, forced=True)), gone("n1"))
    status = status_of(gang(*nodes, abort=abort("node_lost")), now_s=NOW_S)
    assert (status.phase, status.fault, status.first_end) == (GangPhase.LOST, FaultKind.NODE_LOST, None)
    assert status.nodes[0].phase is GangPhase.STOPPED


def test_rank_that_left_early_is_the_first_end_though_it_exited_0() -> None:
    nodes = (ended("n0", "aborted", end(0, code=None, signal=15, forced=True), end(1, at_s=155.0)),)
    status = status_of(gang(*nodes, abort=abort("rank_exited_early", rank=1)), now_s=NOW_S)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.RANK_EXITED_EARLY)
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code) == (1, 0)


@pytest.mark.parametrize("fault", ["start_failed", "disk_full"])
def test_failed_start_and_full_disk_explain_the_ranks_that_fell_with_them(fault: str) -> None:
    nodes = (ended("n0", "aborted", end(0, code=1, log_tail="OSError")),)
    status = status_of(gang(*nodes, abort=abort(fault, rank=0)), now_s=NOW_S)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind(fault))
    assert status.reason == f"because {fault}; its last lines:\nOSError"


def test_failed_start_names_the_rank_that_its_reason_speaks_of() -> None:
    """Rank 0 failed first, but the supervisor of rank 2 spoke first."""
    first = ended("n0", "aborted", end(0, code=127, at_s=160.0, log_tail="zero"))
    speaker = ended("n1", "aborted", end(2, code=127, at_s=160.1, log_tail="two"))
    status = status_of(gang(first, speaker, abort=abort("start_failed", rank=2)), now_s=NOW_S)
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.node) == (2, "n1")
    assert status.reason == "because start_failed; its last lines:\ntwo"


@pytest.mark.parametrize("fault", list(PHASE))
def test_every_fault_that_agents_name_has_its_phase(fault: FaultKind) -> None:
    status = status_of(gang(ended("n0", "aborted"), abort=abort(fault.value)), now_s=NOW_S)
    assert (status.phase, status.fault) == (PHASE[fault], fault)
    assert status.reason == f"because {fault.value}"


def test_faults_that_only_control_sees_are_the_ones_without_a_phase() -> None:
    assert set(FAILURE_CLASS) - set(PHASE) == {FaultKind.HUNG, FaultKind.STOPPED_OUTSIDE}
    with pytest.raises(InternalError, match="hung"):
        status_of(gang(ended("n0", "aborted"), abort=abort("hung")), now_s=NOW_S)


def test_unknown_outcome_is_loud() -> None:
    with pytest.raises(InternalError, match="vaporized"):
        status_of(gang(ended("n0", "vaporized")), now_s=NOW_S)


def test_node_that_vanished_after_its_notice_was_preempted() -> None:
    facts = gang(ended("n0", "aborted"), gone("n1", notice_deadline_s=165.0), abort=abort("node_lost"))
    status = status_of(facts, now_s=NOW_S)
    assert (status.phase, status.fault) == (GangPhase.PREEMPTED, FaultKind.PREEMPTED)
    assert "n1" in status.reason
    assert [each.phase for each in status.nodes] == [GangPhase.STOPPED, GangPhase.PREEMPTED]
    assert [each.node for each in status.noticed] == ["n1"]


def test_ranks_that_fail_because_a_node_was_taken_do_not_make_it_a_failure() -> None:
    nodes = (
        ended("n0", "aborted", end(0, code=1, at_s=165.1)),
        ended("n1", "terminated", end(2, code=None, signal=15, at_s=165.05), at_s=165.5, notice_deadline_s=165.0),
    )
    status = status_of(gang(*nodes, abort=abort("rank_failed", rank=0, at_s=165.2)), now_s=NOW_S)
    assert status.phase is GangPhase.PREEMPTED
    assert status.first_end is None


def test_node_whose_ranks_were_told_to_end_before_the_announced_time_was_preempted() -> None:
    taken = ended("n1", "terminated", end(2, code=None, signal=15, at_s=160.0), notice_deadline_s=900.0)
    assert taken.exit is not None
    nodes = (
        ended("n0", "aborted", end(0, code=1, at_s=160.1)),  # its neighbours were gone
        replace(taken, exit={**taken.exit, "fault": "preempted"}),
    )
    status = status_of(gang(*nodes, abort=abort("rank_failed", rank=0, at_s=160.2)), now_s=NOW_S)
    assert (status.phase, status.first_end) == (GangPhase.PREEMPTED, None)
    failed_before = (ended("n0", "aborted", end(0, code=1, at_s=159.0)), nodes[1])
    assert status_of(gang(*failed_before, abort=abort("rank_failed", rank=0)), now_s=NOW_S).phase is GangPhase.FAILED


def test_first_failure_is_the_first_by_one_clock() -> None:
    """n1's clock is an hour behind: what it saw happen first happened last."""
    late = ended("n1", "aborted", end(2, code=1, at_s=160.2 - 3600.0))
    assert late.exit is not None
    nodes = (ended("n0", "aborted", end(0, code=3, at_s=160.0)), replace(late, exit={**late.exit, "ahead_s": -3600.0}))
    status = status_of(gang(*nodes, abort=abort("rank_failed", rank=0)), now_s=NOW_S)
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code) == (0, 3)


def test_rank_that_fails_before_the_notice_runs_out_is_a_failure() -> None:
    nodes = (
        ended("n0", "aborted", end(0, code=3, at_s=160.0), at_s=162.0),
        ended("n1", "aborted", at_s=162.0, notice_deadline_s=165.0),
    )
    status = status_of(gang(*nodes, abort=abort("rank_failed", rank=0)), now_s=NOW_S)
    assert status.phase is GangPhase.FAILED


def test_gang_that_finishes_within_its_notice_succeeded() -> None:
    nodes = (ended("n0", "done", end(0)), ended("n1", "done", end(1), at_s=170.0, notice_deadline_s=169.0))
    assert status_of(gang(*nodes), now_s=NOW_S).phase is GangPhase.SUCCEEDED


def test_stopped_gang_is_stopped_whatever_its_ranks_answered() -> None:
    nodes = (ended("n0", "stopped", end(0, code=1), end(1, code=None, signal=9, forced=True)),)
    status = status_of(gang(*nodes, stop_at_s=159.0), now_s=NOW_S)
    assert (status.phase, status.first_end, status.fault) == (GangPhase.STOPPED, None, None)


def test_stop_of_a_gang_with_a_lost_node_leaves_it_lost() -> None:
    facts = gang(ended("n0", "stopped"), gone("n1"), stop_at_s=159.0)
    assert status_of(facts, now_s=NOW_S).phase is GangPhase.LOST


@pytest.mark.parametrize(
    ("changes", "now_s", "phase"),
    [
        ({}, 149.9, GangPhase.PENDING),
        ({}, 150.0, GangPhase.LOST),
        ({"stop_at_s": 110.0}, 111.0, GangPhase.STOPPED),
        ({"abort": abort("start_failed")}, 111.0, GangPhase.FAILED),
    ],
)
def test_gang_whose_supervisors_never_came(changes: dict[str, Any], now_s: float, phase: GangPhase) -> None:
    facts = gang(NodeFacts(node=NodeId("n0")), go=False, **changes)
    assert status_of(facts, now_s=now_s).phase is phase


def test_end_without_a_last_word_is_dated_by_the_last_sign_of_life() -> None:
    assert status_of(gang(gone("n0", alive_at_s=155.5)), now_s=NOW_S).ended_at_s == 155.5


def test_orphans_that_nobody_ends_make_a_live_gang_one_that_must_be_ended() -> None:
    facts = gang(node("n0"), gone("n1", stray=True, alive_at_s=150.0), grace_s=10.0)
    limit_s = 150.0 + 10.0 + ORPHANS_END_S
    before, after = (status_of(facts, now_s=now_s) for now_s in (limit_s - 0.1, limit_s))
    assert (before.phase, before.fault) == (GangPhase.RUNNING, None)
    assert (after.phase, after.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    assert "node n1" in after.reason
    assert "n0" not in after.reason


def test_orphans_whose_supervisor_never_gave_a_sign_are_judged_from_the_submit_on() -> None:
    facts = gang(gone("n0", stray=True, alive_at_s=None), grace_s=10.0)
    assert status_of(facts, now_s=100.0 + 10.0 + ORPHANS_END_S).fault is FaultKind.NODE_LOST
