"""From Slurm's words and the agents' records to a gang's status: field cases C1 to C27."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.health import FAILURE_CLASS, FailureClass, FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.agent_states import GangFacts, NodeFacts
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.states import STATES, state_of
from airflow_llmsched.engines.slurm.status import AGENTS_END_S, JobSight, status_of

NOW_S = 1000.0
NODES = (NodeId("n1"), NodeId("n2"))


def job(word: str, **changes: Any) -> JobRecord:
    base: dict[str, Any] = {"exit_code": 0, "started_at_s": 900.0, "submitted_at_s": 890.0}
    state = state_of(word)
    if state.phase.ended:
        base["ended_at_s"] = 990.0
    return JobRecord(job_id="5001", name="x", state=state, **{**base, **changes})


def sight(queue: str | JobRecord | None = None, **changes: Any) -> JobSight:
    record = job(queue) if isinstance(queue, str) else queue
    return JobSight(job_id="5001", nodes=NODES, queue=record, **changes)


def look(seen: JobSight, *, now_s: float = NOW_S) -> GangStatus:
    return status_of(seen, now_s=now_s)


def node(name: str, **changes: Any) -> NodeFacts:
    base = {"claimed": True, "supervisor_alive": True, "started_at_s": 905.0, "alive_at_s": 980.0}
    return NodeFacts(node=NodeId(name), **{**base, **changes})


def end(rank: int, *, code: int | None = 0, signal: int | None = None, at_s: float = 985.0, **more: Any) -> Any:
    base = {"rank": rank, "exit_code": code, "signal": signal, "at_s": at_s, "forced": False, "log_tail": ""}
    return {**base, "start_error": None, **more}


def over(name: str, outcome: str, *ends: Any, **changes: Any) -> NodeFacts:
    record = {"outcome": outcome, "reason": "", "at_s": 986.0, "ends": list(ends)}
    return node(name, **{"supervisor_alive": False, "exit": record, **changes})


def gang(*nodes: NodeFacts, **changes: Any) -> GangFacts:
    return GangFacts(nodes=nodes, submitted_at_s=900.0, start_limit_s=50.0, **{"go": True, **changes})


RUNS = gang(node("n1"), node("n2"))
DONE = gang(over("n1", "done", end(0)), over("n2", "done", end(1)))
ABORT = {"fault": "rank_failed", "reason": "rank 1 failed", "rank": 1, "at_s": 985.0}
RANK_FAILED = gang(
    over("n1", "aborted", end(0, code=None, signal=15, forced=True)),
    over("n2", "aborted", end(1, code=3, log_tail="boom")),
    abort=ABORT,
)
SILENT = gang(node("n1", supervisor_alive=False), node("n2", supervisor_alive=False))


def noticed(facts: GangFacts, deadline_s: float = 1030.0) -> GangFacts:
    return replace(facts, nodes=tuple(replace(each, notice_deadline_s=deadline_s) for each in facts.nodes))


def test_a_running_job_is_what_its_agents_say() -> None:
    assert look(sight("RUNNING", agents=RUNS)).phase is GangPhase.RUNNING
    assert look(sight("RUNNING")).phase is GangPhase.STARTING
    unclaimed = gang(node("n1", claimed=False), node("n2", claimed=False), go=False)
    assert look(sight("RUNNING", agents=unclaimed), now_s=910.0).phase is GangPhase.STARTING


def test_a_waiting_job_says_why() -> None:
    status = look(sight(job("PENDING", reason="Resources", started_at_s=None)))
    assert status.phase is GangPhase.PENDING
    assert "Resources" in status.reason
    assert status.fault is None
    assert {each.phase for each in status.nodes} == {GangPhase.PENDING}


def test_a_job_that_can_never_start_is_a_fault_to_be_ended_from_outside() -> None:
    status = look(sight(job("PENDING", reason="PartitionNodeLimit")))
    assert (status.phase, status.fault) == (GangPhase.PENDING, FaultKind.START_FAILED)
    assert "more nodes than its partition gives" in status.reason


def test_c1_a_requeued_job_is_the_same_gang_to_its_end() -> None:
    words = ["RUNNING", "NODE_FAIL", "REQUEUED", "PENDING", "RUNNING"]
    phases = [look(sight(word, requeues=True, ended_since_s=NOW_S - 1)).phase for word in words]
    assert not any(phase.ended for phase in phases)
    assert look(sight("COMPLETED", requeues=True, agents=DONE, ended_since_s=NOW_S)).phase is GangPhase.SUCCEEDED


def test_c1_restarts_are_told() -> None:
    assert "after 1 restart by Slurm" in look(sight(job("PENDING", num_restarts=1, reason="BeginTime"))).reason


def test_c4_preempted_is_no_success_and_may_come_back_only_where_slurm_requeues() -> None:
    status = look(sight("PREEMPTED"))
    assert (status.phase, status.fault) == (GangPhase.PREEMPTED, FaultKind.PREEMPTED)
    assert look(sight("PREEMPTED", requeues=True, ended_since_s=NOW_S - 29)).phase is GangPhase.PENDING
    assert look(sight("PREEMPTED", requeues=True, ended_since_s=NOW_S - 30)).phase is GangPhase.PREEMPTED


def test_c5_completing_is_no_end() -> None:
    for agents in (RUNS, RANK_FAILED, None):
        assert not look(sight("COMPLETING", agents=agents)).phase.ended
    assert look(sight(job("PENDING", num_restarts=1))).phase is GangPhase.PENDING


def test_c6_a_failed_job_that_left_the_queue_is_a_failure() -> None:
    status = look(sight(accounting=job("FAILED", exit_code=1)))
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
    assert "exit code 1" in status.reason


def test_c10_a_node_that_failed_is_recoverable_within_one_poll_where_slurm_does_not_requeue() -> None:
    status = look(sight("NF", agents=gang(over("n1", "aborted"), node("n2", supervisor_alive=False))))
    assert (status.phase, status.fault) == (GangPhase.LOST, FaultKind.NODE_LOST)
    assert status.unconfirmed_nodes == ("n2",)


def test_ranks_that_failed_because_a_node_did_are_not_the_codes_fault() -> None:
    status = look(sight("NODE_FAIL", agents=RANK_FAILED))
    assert (status.phase, status.fault, status.first_end) == (GangPhase.LOST, FaultKind.NODE_LOST, None)


@pytest.mark.parametrize("word", ["CF", "SI", "SO", "R", "CG", "S", "ST", "RS"])
def test_c11_rare_live_states_keep_waiting(word: str) -> None:
    for _ in range(10):
        assert not look(sight(word, agents=RUNS)).phase.ended


def test_what_is_unusual_about_a_live_job_is_told() -> None:
    assert "suspended" in look(sight("SUSPENDED", agents=RUNS)).reason
    assert look(sight("RUNNING", agents=RUNS)).reason == ""


def test_c12_cancelled_by_another_is_no_failure_of_ranks() -> None:
    record = job("CANCELLED by 1001", cancelled_by="1001")
    status = look(sight(record, agents=gang(over("n1", "terminated"), over("n2", "terminated"))))
    assert (status.phase, status.fault) == (GangPhase.STOPPED, FaultKind.STOPPED_OUTSIDE)
    assert status.reason == "job 5001 was cancelled by uid 1001"


def test_a_job_cancelled_by_us_was_stopped() -> None:
    for agents in (None, SILENT, gang(over("n1", "stopped"), over("n2", "stopped"), stop_at_s=980.0)):
        status = look(sight("CANCELLED", stop_at_s=980.0, agents=agents))
        assert (status.phase, status.fault) == (GangPhase.STOPPED, None)


def test_c12_out_of_memory_is_the_users_failure_and_no_preemption() -> None:
    for agents in (None, RANK_FAILED, SILENT):
        status = look(sight("OUT_OF_ME+", agents=agents))
        assert status.phase is GangPhase.FAILED
        assert status.fault is not None
        assert FAILURE_CLASS[status.fault] is FailureClass.CODE
        assert "memory" in status.reason


def test_c15_without_accounting_the_completion_file_tells() -> None:
    assert look(sight(completion=job("COMPLETED"))).phase is GangPhase.SUCCEEDED
    assert look(sight(completion=job("COMPLETED"), agents=RANK_FAILED)).phase is GangPhase.FAILED


def test_c15_without_any_list_the_agents_records_tell() -> None:
    assert look(sight(agents=DONE, unlisted_since_s=NOW_S)).phase is GangPhase.SUCCEEDED
    assert look(sight(agents=RANK_FAILED, unlisted_since_s=NOW_S)).fault is FaultKind.RANK_FAILED


def test_c17_a_job_not_yet_listed_is_waited_for() -> None:
    assert look(sight()).phase is GangPhase.PENDING
    assert look(sight(unlisted_since_s=NOW_S - 10)).phase is GangPhase.PENDING
    assert look(sight(unlisted_since_s=NOW_S - 10, agents=RUNS)).phase is GangPhase.RUNNING


@pytest.mark.parametrize("agents", [None, RUNS, SILENT], ids=["no agents", "agents run", "agents silent"])
def test_c18_a_job_that_vanished_is_lost_after_the_grace_and_never_a_success(agents: GangFacts | None) -> None:
    status = look(sight(unlisted_since_s=NOW_S - 60, agents=agents))
    assert status.phase is GangPhase.LOST
    assert status.unconfirmed_nodes == NODES
    assert "none of Slurm's lists" in status.reason or "left no word" in status.reason


def test_c18_accounting_that_has_missed_the_end_does_not_keep_a_job_alive() -> None:
    assert look(sight(accounting=job("RUNNING"), unlisted_since_s=NOW_S - 60)).phase is GangPhase.LOST


def test_c27_a_time_limit_is_no_success_and_spends_no_budget() -> None:
    status = look(sight("TIMEOUT", agents=noticed(SILENT, 985.0)))
    assert status.phase is GangPhase.PREEMPTED
    assert status.fault is not None
    assert FAILURE_CLASS[status.fault] is FailureClass.PREEMPTION
    assert "time limit" in status.reason


@pytest.mark.parametrize("word", [word for word, state in STATES.items() if state.phase.ended])
def test_ranks_that_were_all_done_are_a_success_whatever_ended_the_job(word: str) -> None:
    assert look(sight(word, agents=DONE)).phase is GangPhase.SUCCEEDED


@pytest.mark.parametrize("word", [word for word, state in STATES.items() if state.phase.ended and word != "COMPLETED"])
def test_no_other_end_is_a_success(word: str) -> None:
    for agents in (None, RUNS, SILENT, RANK_FAILED):
        assert look(sight(word, agents=agents)).phase is not GangPhase.SUCCEEDED


def test_a_success_of_all_ranks_counts_before_slurm_has_cleaned_up() -> None:
    assert look(sight("COMPLETING", agents=DONE)).phase is GangPhase.SUCCEEDED


def test_a_failure_of_ranks_waits_for_slurms_word_but_not_for_ever() -> None:
    for seconds, phase in ((AGENTS_END_S - 1, GangPhase.RUNNING), (AGENTS_END_S, GangPhase.FAILED)):
        assert look(sight("RUNNING", agents=RANK_FAILED), now_s=986.0 + seconds).phase is phase
    assert look(sight("FAILED", agents=RANK_FAILED)).fault is FaultKind.RANK_FAILED
    assert look(sight("PREEMPTED", agents=RANK_FAILED)).fault is FaultKind.PREEMPTED


def test_a_failed_rank_is_named_with_its_last_lines() -> None:
    status = look(sight("FAILED", agents=RANK_FAILED))
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code) == (1, 3)
    assert "boom" in status.reason


def test_ranks_that_ended_on_slurms_notice_were_preempted() -> None:
    status = look(sight("FAILED", agents=noticed(RANK_FAILED)))
    assert (status.phase, status.fault, status.first_end) == (GangPhase.PREEMPTED, FaultKind.PREEMPTED, None)


def test_a_batch_script_that_saw_all_ranks_done_is_believed_when_a_file_is_missing() -> None:
    late = gang(over("n1", "done", end(0)), node("n2", supervisor_alive=False))
    assert look(sight("COMPLETED", agents=late)).phase is GangPhase.SUCCEEDED
    assert look(sight("FAILED", agents=late)).phase is GangPhase.LOST


def test_ends_lie_between_the_start_and_now() -> None:
    status = look(sight(job("NODE_FAIL", ended_at_s=2000.0), agents=RUNS))
    assert status.started_at_s == 905.0
    assert status.ended_at_s == NOW_S
    status = look(sight(job("NODE_FAIL", ended_at_s=905.0 - 0.5), agents=RUNS))
    assert status.ended_at_s == 905.0


def test_a_job_that_lost_its_nodes_before_it_started_left_nothing() -> None:
    assert look(sight(job("BOOT_FAIL", started_at_s=None))).unconfirmed_nodes == ()


def test_a_gang_that_was_stopped_has_ended_with_its_ranks_whatever_the_site_does_after_a_job() -> None:
    stopped = gang(over("n1", "stopped"), over("n2", "stopped"), stop_at_s=984.0)
    status = look(sight("COMPLETING", agents=stopped, stop_at_s=984.0))
    assert (status.phase, status.fault) == (GangPhase.STOPPED, None)


def test_a_job_that_failed_before_any_rank_began_is_a_failed_start() -> None:
    unclaimed = gang(*(node(name, claimed=False, started_at_s=None) for name in ("n1", "n2")), go=False)
    status = look(sight(job("FAILED", exit_code=1), agents=unclaimed), now_s=910.0)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
