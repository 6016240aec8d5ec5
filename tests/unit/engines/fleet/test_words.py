from __future__ import annotations

from airflow_llmsched.domain.gang import Closeness, GangHandle, GangPhase, GangStatus, NodeStatus, RankEnd
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.engines.fleet import words
from airflow_llmsched.engines.fleet.book import Entry

KEY = AttemptKey(run=RunKey("ls-x"), generation=1, attempt=2)
N1, N10 = NodeId("n1"), NodeId("n10")


def test_names_of_nodes_in_messages_become_the_fleets_and_nothing_else_does() -> None:
    text = "node n1 was lost, n10 and n1: see /var/n1/log, n1-ib and rank 1"
    told = words.named_in_fleet(text, "a", [N1, N10])
    assert told == "node a/n1 was lost, a/n10 and a/n1: see /var/n1/log, n1-ib and rank 1"
    assert words.named_in_fleet("nothing", "a", []) == "nothing"


def test_a_status_is_told_in_the_fleets_names_throughout() -> None:
    end = RankEnd(rank=0, node=N1, exit_code=3, signal=None, at_s=5.0)
    status = GangStatus(
        phase=GangPhase.LOST,
        observed_at_s=9.0,
        nodes=(NodeStatus(node=N1, phase=GangPhase.LOST, reason="n1 vanished"),),
        reason="node n1 vanished",
        first_end=end,
        unconfirmed_nodes=(N1,),
    )
    told = words.fleet_status(status, "a")
    assert told.nodes[0].node == "a/n1"
    assert told.nodes[0].reason == "a/n1 vanished"
    assert told.reason == "node a/n1 vanished"
    assert told.first_end is not None
    assert told.first_end.node == "a/n1"
    assert told.unconfirmed_nodes == ("a/n1",)
    assert (told.phase, told.observed_at_s) == (GangPhase.LOST, 9.0)


def test_a_placement_is_told_to_a_cluster_in_its_own_names() -> None:
    slots = tuple(RankSlot(rank=rank, node=NodeId("a/n1"), slot=rank, local_rank=rank) for rank in range(2))
    assert words.own_placement(Placement(slots=slots)).nodes == (N1,)


def test_nodes_of_other_clusters_are_no_names_of_a_clusters_own() -> None:
    assert words.own_nodes([NodeId("b/n0"), NodeId("a/n0"), NodeId("b/n2")], "b") == ("n0", "n2")


def test_a_gang_lost_with_its_cluster_may_be_alive_on_every_node() -> None:
    status = words.lost_with_cluster(
        Entry(key=KEY, cluster="a", at_s=0.0, nodes=(N1, N10)), now_s=7.0, reason="no answer"
    )
    assert status.phase is GangPhase.LOST
    assert status.unconfirmed_nodes == ("a/n1", "a/n10")
    assert status.ended_at_s == 7.0


def test_handles_say_their_cluster_and_come_apart_again() -> None:
    handle = words.fleet_handle("a", KEY, "hosts/17/x")
    assert words.parted(handle) == ("a", "hosts/17/x")
    assert words.parted(GangHandle(engine="local", key=KEY, native_id="ls-x-g1-a2")) is None


def test_what_is_to_be_close_is_told_by_the_clusters_own_names_of_levels() -> None:
    close = (Closeness(level="rack", num_nodes=4), Closeness(level="block", num_nodes=2))
    assert words.own_closeness(close, {"switch0": "rack"}) == (Closeness(level="switch0", num_nodes=4), close[1])
