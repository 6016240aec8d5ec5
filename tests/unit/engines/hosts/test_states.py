from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.agent_states import NodeFacts
from airflow_llmsched.engines.hosts.states import Asked, status_of
from airflow_llmsched.engines.hosts.words import Gone, Off, Part, Sight, Unseen, Whose

H1, H2 = NodeId("h1"), NodeId("h2")
ASKED = Asked(nodes=(H1, H2), submitted_at_s=100.0, start_limit_s=60.0)
WHOSE = Whose(channel_root="/c", submitted_at_s=100.0, nodes=(H1, H2))
SILENT = Unseen(reason="host h2 is silent")


def exit_of(outcome: str, **told: Any) -> dict[str, Any]:
    return {"at_s": 150.0, "outcome": outcome, "reason": "", "fault": None, "ends": [], **told}


def part(node: NodeId, *, end: dict[str, Any] | None = None, abort: dict[str, Any] | None = None) -> Part:
    facts = NodeFacts(
        node=node, claimed=True, supervisor_alive=end is None, started_at_s=110.0, alive_at_s=149.0, exit=end
    )
    return Part(node=facts, whose=WHOSE, go=True, abort=abort)


def judged(first: Sight, second: Sight, asked: Asked = ASKED) -> Any:
    return status_of(asked, {H1: first, H2: second}, now_s=200.0)


def test_gang_whose_hosts_all_run_runs() -> None:
    status = judged(part(H1), part(H2))
    assert (status.phase, status.fault, status.started_at_s) == (GangPhase.RUNNING, None, 110.0)


def test_live_gang_with_a_silent_host_has_lost_it_and_goes_on_until_it_is_ended() -> None:
    status = judged(part(H1), SILENT)
    assert (status.phase, status.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    assert "lost node h2: host h2 is silent" in status.reason
    assert [node.phase for node in status.nodes] == [GangPhase.RUNNING] * 2
    assert "cannot be seen" in status.nodes[1].reason
    assert status.unconfirmed_nodes == ()


def test_live_gang_of_which_a_host_has_lost_its_part_says_so_before_the_others_notice() -> None:
    dead = Part(node=NodeFacts(node=H2, claimed=True, started_at_s=110.0, alive_at_s=120.0), whose=WHOSE, go=True)
    status = judged(part(H1), dead)
    assert (status.phase, status.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    assert "lost node h2: its supervisor is gone" in status.reason
    ending = judged(part(H1), dead, replace(ASKED, stop_at_s=140.0))
    assert (ending.phase, ending.fault) == (GangPhase.RUNNING, None), "it is being ended"
    left = judged(part(H1), replace(dead, node=replace(dead.node, stray=True)))
    assert left.nodes[1].phase is GangPhase.RUNNING, "its ranks are ending"
    abort = {"node": "h1", "at_s": 140.0, "fault": "rank_failed", "reason": "rank 0 failed", "rank": 0}
    assert judged(part(H1, abort=abort), dead).fault is None, "the others know, and say better why"


def test_gang_that_the_others_report_ended_is_ended_and_its_silent_host_unconfirmed() -> None:
    abort = {"node": "h1", "at_s": 140.0, "fault": "node_lost", "reason": "node h2 vanished", "rank": None}
    status = judged(part(H1, end=exit_of("aborted", reason="node h2 vanished"), abort=abort), SILENT)
    assert (status.phase, status.unconfirmed_nodes) == (GangPhase.LOST, (H2,))
    assert "node h2 vanished" in status.reason
    assert "may be alive" in status.reason


def test_stopped_gang_is_ended_once_every_host_in_sight_says_so() -> None:
    stopped = replace(ASKED, stop_at_s=140.0)
    assert not judged(part(H1), SILENT, stopped).phase.ended
    status = judged(part(H1, end=exit_of("stopped")), SILENT, stopped)
    assert (status.phase, status.unconfirmed_nodes) == (GangPhase.STOPPED, (H2,))


def test_host_that_is_done_speaks_for_all() -> None:
    status = judged(part(H1, end=exit_of("done")), SILENT)
    assert (status.phase, status.unconfirmed_nodes) == (GangPhase.SUCCEEDED, ())


def test_failed_rank_in_sight_is_the_cause_though_another_host_is_silent() -> None:
    end = {"rank": 1, "at_s": 149.0, "exit_code": 3, "signal": None, "forced": False, "log_tail": "nan"}
    status = judged(part(H1, end=exit_of("aborted", ends=[end])), SILENT)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.RANK_FAILED)
    assert status.first_end.rank == 1
    assert status.unconfirmed_nodes == (H2,)


def test_gang_with_no_host_in_sight_is_lost_when_it_was_stopped_and_live_before() -> None:
    silent = Unseen(reason="host h1 is silent")
    live = judged(silent, SILENT)
    assert (live.phase, live.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    ended = judged(silent, SILENT, replace(ASKED, stop_at_s=140.0))
    assert (ended.phase, ended.unconfirmed_nodes, ended.ended_at_s) == (GangPhase.LOST, (H1, H2), 140.0)


def test_host_that_was_never_told_to_go_can_run_nothing_seen_or_not() -> None:
    abort = {"node": "h2", "at_s": 130.0, "fault": "start_failed", "reason": "host h2: silent", "rank": None}
    asked = replace(ASKED, abort=abort, is_gone_to=False)
    status = judged(part(H1, end=exit_of("stopped")), SILENT, asked)
    assert (status.phase, status.fault, status.unconfirmed_nodes) == (GangPhase.FAILED, FaultKind.START_FAILED, ())
    nobody = judged(Unseen(reason="x"), SILENT, asked)
    assert nobody.phase.ended
    assert nobody.unconfirmed_nodes == ()


def test_host_that_is_proven_off_is_lost_and_nothing_of_the_gang_is_unconfirmed() -> None:
    off = Off(reason="host h2 was turned off", at_s=160.0)
    live = judged(part(H1), off)
    assert (live.phase, live.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    status = judged(part(H1, end=exit_of("stopped")), off, replace(ASKED, stop_at_s=140.0))
    assert status.phase is GangPhase.STOPPED
    assert [node.phase for node in status.nodes] == [GangPhase.STOPPED, GangPhase.LOST]
    assert status.unconfirmed_nodes == ()
    assert "host h2 was turned off" in status.reason
    assert "may be alive" not in status.reason


def test_gang_whose_hosts_are_all_off_has_ended_though_nobody_stopped_it() -> None:
    status = judged(Off(reason="host h1 was turned off", at_s=150.0), Off(reason="host h2 was turned off", at_s=160.0))
    assert (status.phase, status.fault) == (GangPhase.LOST, FaultKind.NODE_LOST)
    assert (status.ended_at_s, status.unconfirmed_nodes) == (160.0, ())
    untimed = judged(Off(reason="host h1 is off"), Off(reason="host h2 is off"))
    assert untimed.ended_at_s == 200.0, "as good a time as any, and remembered"


def test_host_that_is_off_proves_nothing_of_one_that_is_silent() -> None:
    stopped = replace(ASKED, stop_at_s=140.0)
    status = judged(Off(reason="host h1 is off"), SILENT, stopped)
    assert (status.phase, status.unconfirmed_nodes) == (GangPhase.LOST, (H2,))
    assert "may be alive" in status.reason


def test_host_that_has_no_part_never_started_or_was_stopped_before_it_did() -> None:
    assert judged(part(H1), Gone()).nodes[1].phase is GangPhase.LOST
    stopped = judged(Gone(), Gone(), replace(ASKED, stop_at_s=140.0))
    assert stopped.phase is GangPhase.STOPPED


def test_earliest_word_is_the_cause() -> None:
    late = {"node": "h1", "at_s": 145.0, "fault": "node_lost", "reason": "node h2 vanished", "rank": None}
    early = {"node": "h2", "at_s": 141.0, "fault": "disk_full", "reason": "disk full", "rank": None}
    end = exit_of("aborted")
    status = judged(part(H1, end=end, abort=late), part(H2, end=end, abort=early))
    assert status.reason == "disk full"


def test_gang_that_another_deployment_stopped_was_stopped() -> None:
    first = replace(part(H1, end=exit_of("stopped")), stop_at_s=140.0)
    assert judged(first, part(H2, end=exit_of("stopped"))).phase is GangPhase.STOPPED
