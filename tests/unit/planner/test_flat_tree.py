from __future__ import annotations

from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.planner.flat_tree import flat_tree
from airflow_llmsched.planner.perf.hardware import node_shape
from tests.support.fleets import local_workload

CPU = node_shape("local-cpu")


def test_a_flat_fleet_has_every_level_that_the_wishes_name() -> None:
    wishes = tuple(
        PlacementWish(group=RankGroup.TP, level=level, required=True) for level in ("rack", "node", "block", "rack")
    )
    tree = flat_tree(local_workload(placement=wishes), num_nodes=3, num_slots=2, shape=CPU)
    assert tree.levels == ("rack", "block")
    assert tree.num_usable_slots == 6
    assert len({node.path for node in tree.nodes}) == 1
    assert flat_tree(local_workload(), num_nodes=1, num_slots=1, shape=CPU).levels == ("fleet",)


def test_nodes_that_fast_links_join_are_in_islands_of_as_many_as_these_can_join() -> None:
    tree = flat_tree(local_workload(), num_nodes=20, num_slots=4, shape=node_shape("gb200-nvl72"))
    assert (tree.levels, tree.scale_up_level) == (("island",), "island")
    assert [len(nodes) for nodes in tree.domains("island").values()] == [18, 2]
