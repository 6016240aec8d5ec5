"""The failure policy: who pays for a fault, and when enough is enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.decision import Abort, Migrate, Restart
from airflow_llmsched.domain.health import FailureClass, Fault, FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.planner.policies.failure import FailureHistory, decide

GENEROUS = RetrySpec(max_code_failures=99, max_infrastructure_failures=99, max_attempts_without_progress=99)
N1 = NodeId("n1")


def fault(kind: FaultKind, **more: object) -> Fault:
    return Fault(kind=kind, summary=f"{kind} happened", at_s=1.0, **more)  # type: ignore[arg-type]


def history_of(*faults: Fault, progress_after: frozenset[int] = frozenset()) -> FailureHistory:
    history = FailureHistory()
    for index, each in enumerate(faults):
        history = history.launched().struck(each)
        if index in progress_after:
            history = history.progressed()
    return history


CODE = fault(FaultKind.RANK_FAILED, rank=1, exit_code=3, log_tail="loss is nan")
HUNG = fault(FaultKind.HUNG, node=N1, rank=1)
PREEMPTED = fault(FaultKind.PREEMPTED, node=N1)


def test_code_fault_restarts_with_the_same_plan() -> None:
    assert isinstance(decide(CODE, history_of(CODE), GENEROUS), Restart)


@pytest.mark.parametrize("kind", [FaultKind.PREEMPTED, FaultKind.NODE_LOST, FaultKind.GANG_LOST])
def test_taken_or_lost_nodes_mean_a_new_plan_on_what_is_free(kind: FaultKind) -> None:
    gone = fault(kind, node=N1)
    decision = decide(gone, history_of(gone), GENEROUS)
    assert isinstance(decision, Migrate)
    assert decision.excluded == ()


def test_platform_fault_restarts_in_place_first_and_leaves_the_node_the_second_time() -> None:
    assert isinstance(decide(HUNG, history_of(HUNG), GENEROUS), Restart)
    again = decide(HUNG, history_of(HUNG, HUNG), GENEROUS)
    assert isinstance(again, Migrate)
    assert again.excluded == (N1,)
    elsewhere = fault(FaultKind.HUNG, node=NodeId("n2"))
    assert isinstance(decide(elsewhere, history_of(HUNG, elsewhere), GENEROUS), Restart)


def test_lost_node_is_not_held_against_it() -> None:
    lost = fault(FaultKind.NODE_LOST, node=N1)
    assert isinstance(decide(HUNG, history_of(lost, lost, HUNG), GENEROUS), Restart)


def test_same_code_fault_twice_without_progress_ends_the_run_with_its_last_lines() -> None:
    decision = decide(CODE, history_of(CODE, CODE), GENEROUS)
    assert isinstance(decision, Abort)
    assert decision.reason.endswith("\nloss is nan")


def test_last_lines_are_not_repeated_when_the_summary_holds_them() -> None:
    told = Fault(kind=FaultKind.RANK_FAILED, summary="rank 1 failed:\nloss is nan", at_s=1.0, log_tail="loss is nan")
    decision = decide(told, history_of(told), RetrySpec(max_code_failures=0))
    assert isinstance(decision, Abort)
    assert decision.reason.count("loss is nan") == 1


def test_same_code_fault_after_progress_is_only_charged() -> None:
    decision = decide(CODE, history_of(CODE, CODE, progress_after=frozenset({0})), GENEROUS)
    assert isinstance(decision, Restart)


@pytest.mark.parametrize("change", [{"rank": 2}, {"exit_code": 4}, {"exit_code": -9}])
def test_code_fault_elsewhere_or_of_another_kind_is_not_a_repeat(change: dict[str, int]) -> None:
    other = fault(FaultKind.RANK_FAILED, **{"rank": 1, "exit_code": 3, **change})
    assert isinstance(decide(CODE, history_of(other, CODE), GENEROUS), Restart)


def test_each_class_has_its_own_budget() -> None:
    retries = RetrySpec(max_code_failures=1, max_infrastructure_failures=1, max_attempts_without_progress=99)
    other = fault(FaultKind.RANK_FAILED, rank=2, exit_code=1)
    assert isinstance(decide(CODE, history_of(HUNG, CODE), retries), Restart)
    spent_code = decide(CODE, history_of(other, CODE), retries)
    assert isinstance(spent_code, Abort)
    assert "max_code_failures=1" in spent_code.reason
    spent_platform = decide(HUNG, history_of(HUNG, HUNG), retries)
    assert isinstance(spent_platform, Abort)
    assert "max_infrastructure_failures=1" in spent_platform.reason


@given(count=st.integers(min_value=1, max_value=50))
def test_preemption_spends_no_budget(count: int) -> None:
    history = history_of(*[PREEMPTED] * count, progress_after=frozenset(range(count)))
    assert (history.num_code_faults, history.num_infrastructure_faults, history.num_preemptions) == (0, 0, count)
    none = RetrySpec(max_code_failures=0, max_infrastructure_failures=0, max_attempts_without_progress=1)
    assert isinstance(decide(PREEMPTED, history, none), Migrate)


def test_launches_without_progress_end_the_run_whatever_ended_them() -> None:
    retries = RetrySpec(max_attempts_without_progress=3, max_infrastructure_failures=99)
    assert isinstance(decide(PREEMPTED, history_of(PREEMPTED, HUNG), retries), Migrate)
    decision = decide(PREEMPTED, history_of(PREEMPTED, HUNG, PREEMPTED), retries)
    assert isinstance(decision, Abort)
    assert "3 launches in a row left no new checkpoint" in decision.reason


KINDS = st.sampled_from(list(FaultKind))


@given(kinds=st.lists(KINDS, min_size=1, max_size=30))
def test_every_run_of_faults_without_progress_ends_within_the_allowed_launches(kinds: list[FaultKind]) -> None:
    retries = RetrySpec()
    history = FailureHistory()
    for number, kind in enumerate(kinds, start=1):
        struck = fault(kind, rank=0, exit_code=1)
        history = history.launched().struck(struck)
        if isinstance(decide(struck, history, retries), Abort):
            return
        assert number < retries.max_attempts_without_progress


@given(kinds=st.lists(KINDS, max_size=30))
def test_every_fault_is_charged_to_exactly_one_class(kinds: list[FaultKind]) -> None:
    history = history_of(*(fault(kind) for kind in kinds))
    counts = (history.num_code_faults, history.num_infrastructure_faults, history.num_preemptions)
    assert sum(counts) == len(kinds)
    classes = [fault(kind).failure_class for kind in kinds]
    assert counts == tuple(classes.count(each) for each in FailureClass)
