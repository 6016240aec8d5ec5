"""Whose fault an end is."""

from __future__ import annotations

import pytest

from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.domain.gang import GangPhase, GangStatus, NodeStatus, RankEnd
from airflow_llmsched.domain.health import FailureClass, Fault, FaultKind
from airflow_llmsched.domain.identity import NodeId

N0, N1 = NodeId("n0"), NodeId("n1")


def rank_end(exit_code: int | None = 1, signal: int | None = None, log_tail: str = "") -> RankEnd:
    return RankEnd(rank=1, node=N0, exit_code=exit_code, signal=signal, at_s=5.0, log_tail=log_tail)


def fault(phase: GangPhase, **more: object) -> Fault:
    status = GangStatus(phase=phase, observed_at_s=9.0, **more)  # type: ignore[arg-type]
    found = fault_of(status, last_step=None, num_steps=None)
    assert found is not None
    return found


def test_success_is_nobodys_fault_unless_it_came_early() -> None:
    done = GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=9.0)
    assert fault_of(done, last_step=50, num_steps=50) is None
    assert fault_of(done, last_step=None, num_steps=50) is None
    assert fault_of(done, last_step=3, num_steps=None) is None
    early = fault_of(done, last_step=3, num_steps=50)
    assert early is not None
    assert (early.kind, early.summary) == (FaultKind.RANK_EXITED_EARLY, "every rank exited 0 after step 3 of 50")


def test_failed_rank_is_named_with_its_code_and_last_lines() -> None:
    found = fault(
        GangPhase.FAILED, first_end=rank_end(3, log_tail="nan"), reason="rank 1 exited with 3", ended_at_s=6.0
    )
    assert (found.kind, found.rank, found.node, found.exit_code) == (FaultKind.RANK_FAILED, 1, "n0", 3)
    assert (found.summary, found.log_tail, found.at_s) == ("rank 1 exited with 3", "nan", 6.0)
    assert found.failure_class is FailureClass.CODE


def test_signal_is_told_apart_from_a_code() -> None:
    assert fault(GangPhase.FAILED, first_end=rank_end(None, 9)).exit_code == -9


def test_rank_that_exits_0_while_others_run_left_early() -> None:
    assert fault(GangPhase.FAILED, first_end=rank_end(0)).kind is FaultKind.RANK_EXITED_EARLY


def test_gang_that_failed_before_any_rank_ran_did_not_start() -> None:
    assert fault(GangPhase.FAILED).kind is FaultKind.START_FAILED
    assert fault(GangPhase.FAILED, started_at_s=1.0).kind is FaultKind.RANK_FAILED


@pytest.mark.parametrize("text", ["OSError: [Errno 28] No space left on device", "write: Disk quota exceeded"])
def test_full_disk_is_the_platforms_fault_even_when_a_rank_failed_on_it(text: str) -> None:
    found = fault(GangPhase.FAILED, first_end=rank_end(log_tail=text), fault=FaultKind.RANK_FAILED)
    assert found.kind is FaultKind.DISK_FULL
    assert found.failure_class is FailureClass.INFRASTRUCTURE


def test_engines_own_word_is_taken() -> None:
    assert fault(GangPhase.FAILED, fault=FaultKind.START_TIMEOUT).kind is FaultKind.START_TIMEOUT


def test_preempted_lost_and_stopped_are_three_different_faults() -> None:
    nodes = (NodeStatus(node=N0, phase=GangPhase.STOPPED), NodeStatus(node=N1, phase=GangPhase.PREEMPTED))
    taken = fault(GangPhase.PREEMPTED, nodes=nodes)
    assert (taken.kind, taken.node, taken.failure_class) == (FaultKind.PREEMPTED, "n1", FailureClass.PREEMPTION)
    vanished = fault(GangPhase.LOST, nodes=(NodeStatus(node=N1, phase=GangPhase.LOST),))
    assert (vanished.kind, vanished.node) == (FaultKind.NODE_LOST, "n1")
    assert fault(GangPhase.LOST).kind is FaultKind.GANG_LOST
    assert fault(GangPhase.STOPPED).kind is FaultKind.STOPPED_OUTSIDE


def test_peers_that_fail_because_a_node_was_taken_do_not_make_it_a_code_failure() -> None:
    nodes = (
        NodeStatus(node=N0, phase=GangPhase.FAILED),
        NodeStatus(node=N1, phase=GangPhase.FAILED, notice_deadline_s=7.0),
    )
    reset = rank_end(1, log_tail="Connection reset by peer")
    after = fault(GangPhase.FAILED, nodes=nodes, first_end=reset, ended_at_s=7.2)
    assert (after.kind, after.node) == (FaultKind.PREEMPTED, "n1")
    before = fault(GangPhase.FAILED, nodes=nodes, first_end=reset, ended_at_s=6.0)
    assert before.kind is FaultKind.RANK_FAILED
