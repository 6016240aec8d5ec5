from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NodeCosts, Placement, RankSlot
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.fleet_index import FleetIndex
from tests.support.fleets import fleet, node, tree_of


def on(*slots: tuple[str, int]) -> Placement:
    return Placement(
        slots=tuple(
            RankSlot(rank=rank, node=NodeId(name), slot=slot, local_rank=0) for rank, (name, slot) in enumerate(slots)
        )
    )


def numbers(index: FleetIndex) -> dict[str, object]:
    table = index.table(group_size=2)
    columns = ("free_N", "capacity_N", "is_whole_N", "num_slots_N")
    by_level = ("free_D", "num_slots_D", "num_whole_nodes_D", "num_whole_inner_D")
    return {
        **{name: getattr(table, name).tolist() for name in columns},
        **{name: [each.tolist() for each in getattr(index, name)] for name in by_level},
        "slots": table.slots,
        "usd": index.costs.usd_per_hour_N.tolist(),
    }


@st.composite
def trees(draw: st.DrawFn) -> TopologyTree:
    return tree_of(
        *(
            node(
                f"n{number}", path=(f"b{draw(st.integers(0, 1))}", f"r{draw(st.integers(0, 1))}"), slots=4,
                free=draw(st.integers(0, 4)), unusable=draw(st.sampled_from([None, None, "drained"])),
            )
            for number in range(draw(st.integers(1, 6)))
        )
    )  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(tree=trees(), data=st.data())
def test_after_any_changes_it_is_what_it_would_be_if_laid_out_anew(tree: TopologyTree, data: st.DataObject) -> None:
    index, nodes = FleetIndex(tree), {each.id: each for each in tree.nodes}
    costs: dict[NodeId, NodeCosts] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        name = data.draw(st.sampled_from(sorted(nodes)))
        free = tuple(sorted(data.draw(st.sets(st.integers(0, 3)))))
        reason = data.draw(st.sampled_from([None, "drained"]))
        nodes[name] = replace(nodes[name], num_free_slots=len(free), free_slots=free, unusable_reason=reason)
        index.update(nodes[name])
        costs[name] = NodeCosts(usd_per_hour=data.draw(st.floats(0, 9)))
        index.set_costs(name, costs[name])
    rebuilt = replace(tree, nodes=tuple(nodes.values()))
    assert numbers(index) == numbers(FleetIndex(rebuilt, costs))
    table, own = NodeTable.of(rebuilt, group_size=2, excluded={tree.nodes[0].id}), index.table(
        group_size=2, excluded={tree.nodes[0].id}
    )  # fmt: skip
    assert own.capacity_N.tolist() == table.capacity_N.tolist()
    assert (own.ids, own.slots, own.levels) == (table.ids, table.slots, table.levels)


@settings(deadline=None, max_examples=40)
@given(tree=trees(), seed=st.integers(0, 99))
def test_what_gangs_take_and_give_back_leaves_no_trace(tree: TopologyTree, seed: int) -> None:
    index, chance = FleetIndex(tree), random.Random(seed)
    before = numbers(index)
    free = [(each.id, slot) for each in tree.nodes for slot in range(each.num_free_slots)]
    chance.shuffle(free)
    gangs = [on(*free[start : start + 3]) for start in range(0, len(free), 3)]
    for gang in gangs:
        index.take(gang)
    assert index.free_N.sum() == 0
    chance.shuffle(gangs)
    for gang in gangs:
        index.give_back(gang)
    assert numbers(index) == before


def test_whole_nodes_and_domains_are_counted_level_by_level() -> None:
    index = FleetIndex(fleet(16))
    assert [each.tolist() for each in index.num_whole_inner_D] == [[2, 2], [4, 4, 4, 4]]
    index.take(on(("n0000", 3)))
    assert [each.tolist() for each in index.num_whole_nodes_D] == [[7, 8], [3, 4, 4, 4]]
    assert [each.tolist() for each in index.num_whole_inner_D] == [[1, 2], [3, 4, 4, 4]]
    assert [each.tolist() for each in index.free_D] == [[63, 64], [31, 32, 32, 32]]


def test_slots_are_taken_once_and_given_back_once_or_nothing_happens() -> None:
    index = FleetIndex(fleet(2))
    index.take(on(("n0000", 0)))
    before = numbers(index)
    with pytest.raises(ValueError, match="not free"):
        index.take(on(("n0001", 0), ("n0000", 0)))
    with pytest.raises(ValueError, match="free already"):
        index.give_back(on(("n0000", 0), ("n0001", 0)))
    with pytest.raises(KeyError):
        index.take(on(("elsewhere", 0)))
    assert numbers(index) == before


def test_a_node_that_moved_or_grew_is_another_tree() -> None:
    index = FleetIndex(fleet(2))
    own = index.tree_node(0)
    for other in (replace(own, path=("b9", "r9")), replace(own, num_slots=16)):
        with pytest.raises(ValueError, match="lay the tree out again"):
            index.update(other)


def test_one_changed_node_of_12288_takes_well_under_five_milliseconds() -> None:
    tree = fleet(12288, nodes_per_rack=8, racks_per_block=16)
    index = FleetIndex(tree)
    changed = [replace(each, num_free_slots=number % 8) for number, each in enumerate(tree.nodes[:2000])]
    seconds = []
    for each in changed:
        begin_s = time.perf_counter()
        index.update(each)
        seconds.append(time.perf_counter() - begin_s)
    assert np.median(seconds) < 0.5e-3
    assert index.free_N[0] == 0
    assert isinstance(index.tree_node(0), TopologyNode)
