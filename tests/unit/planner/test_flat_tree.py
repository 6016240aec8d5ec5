from __future__ import annotations

from airflow_llmsched.domain.workload import PlacementWish, RankGroup
from airflow_llmsched.planner.flat_tree import flat_tree
from tests.support.fleets import local_workload


def test_a_flat_fleet_has_every_level_that_the_wishes_name() -> None:
    wishes = tuple(
        PlacementWish(group=RankGroup.TP, level=level, required=True) for level in ("rack", "node", "block", "rack")
    )
    tree = flat_tree(local_workload(placement=wishes), num_nodes=3, num_slots=2, shape="local-cpu")
    assert tree.levels == ("rack", "block")
    assert tree.num_usable_slots == 6
    assert len({node.path for node in tree.nodes}) == 1
    assert flat_tree(local_workload(), num_nodes=1, num_slots=1, shape="local-cpu").levels == ("fleet",)
