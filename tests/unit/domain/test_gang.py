from __future__ import annotations

from airflow_llmsched.domain.gang import GangPhase, GangStatus, NodeStatus, abandoned_status
from airflow_llmsched.domain.identity import NodeId


def test_a_gang_has_ended_in_every_phase_but_three():
    assert {phase for phase in GangPhase if not phase.ended} == {
        GangPhase.PENDING,
        GangPhase.STARTING,
        GangPhase.RUNNING,
    }


def test_preempted_failed_lost_and_stopped_are_four_different_ends():
    assert len({GangPhase.PREEMPTED, GangPhase.FAILED, GangPhase.LOST, GangPhase.STOPPED}) == 4


def test_a_node_counts_as_noticed_from_its_announcement_on_even_at_time_zero():
    nodes = tuple(
        NodeStatus(node=NodeId(name), phase=GangPhase.RUNNING, notice_deadline_s=deadline_s)
        for name, deadline_s in (("a", None), ("b", 12.0), ("c", 0.0))
    )
    status = GangStatus(phase=GangPhase.RUNNING, observed_at_s=1.0, nodes=nodes)
    assert [node.node for node in status.noticed] == ["b", "c"]


def test_an_abandoned_gang_has_ended_without_ever_having_started():
    status = abandoned_status(observed_at_s=9.0, at_s=3.0)
    assert status.phase.ended
    assert (status.started_at_s, status.ended_at_s, status.nodes, status.unconfirmed_nodes) == (None, 3.0, (), ())
