from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.domain.queue import SlicedSlot, SliceKind
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.queue.room import FLEET, Room
from tests.support.fleets import with_busy_links
from tests.support.queues import gang, racks, runs_on


def room_of(tree: TopologyTree, *running: object, sliced: tuple[SlicedSlot, ...] = ()) -> Room:
    return Room.of(tree, running, sliced)  # type: ignore[arg-type]


def free(room: Room, **slots: int) -> np.ndarray:
    free_N = room.whole_N.copy()
    for name, number in slots.items():
        free_N[room.position[NodeId(name)]] = number
    return free_N


def test_slots_of_running_gangs_are_the_queues_whether_or_not_the_tree_calls_them_free():
    tree = racks(1)
    busy = replace(tree, nodes=tuple(replace(node, num_free_slots=2) for node in tree.nodes))
    running = runs_on(gang("a"), {"r0n0": 2}, first=2)
    assert room_of(tree, running).whole_N.tolist() == [4, 4]
    assert room_of(busy, running).whole_N.tolist() == [4, 2]


def test_slots_that_are_given_out_in_slices_and_nodes_that_must_not_be_used_are_no_gangs():
    tree = racks(1)
    tree = replace(tree, nodes=(replace(tree.nodes[0], unusable_reason="drained"), tree.nodes[1]))
    sliced = SlicedSlot(node=NodeId("r0n1"), slot=3, kind=SliceKind.MIG, num_slices=7)
    room = room_of(tree, runs_on(gang("a"), {"r0n0": 4}), sliced=(sliced,))
    assert room.whole_N.tolist() == [0, 3]
    assert room.share_of({NodeId("r0n0"): 4, NodeId("r0n1"): 1, NodeId("gone"): 4})[0].tolist() == [1]


def test_a_small_gang_goes_to_what_others_left_over():
    room = room_of(racks(2))
    nodes = next(room.domains(free(room, r1n1=2), gang("evaluation", 2)))
    assert [room.nodes[node].id for node in nodes] == ["r1n1"]


def test_domains_come_innermost_first_and_only_those_that_hold_the_gang():
    room = room_of(racks(4, blocks=2))
    sizes = [len(nodes) for nodes in room.domains(room.whole_N, gang("a", 8))]
    assert sizes == [2, 4, 8]
    assert [len(nodes) for nodes in room.domains(room.whole_N, gang("a", 8, required_level="rack"))] == [2]


def test_groups_are_not_torn():
    room = room_of(racks(1))
    assert room.most(free(room, r0n0=3, r0n1=3), gang("a", 4, tp=2)) == 4
    assert not room.fits(free(room, r0n0=3, r0n1=3), gang("a", 6, tp=2))
    assert room.fits(free(room, r0n0=3, r0n1=3), gang("a", 6))


def test_groups_may_cross_nodes_inside_the_domain_of_the_fastest_links():
    room = room_of(replace(racks(2), scale_up_level="rack"))
    free_N = free(room, r0n0=3, r0n1=3, r1n0=1, r1n1=1)
    assert room.most(free_N, gang("a", 6, tp=6)) == 6
    assert room.rooms_D(free_N, depth=FLEET, group_size=6).tolist() == [6]
    assert room.rooms_D(free_N, depth=0, group_size=2).tolist() == [8]


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no level 'pod' in the topology; known: block, rack, node"):
        room_of(racks(1)).depth("pod")


def test_excluded_nodes_have_no_room():
    room = room_of(racks(1))
    assert room.most(room.whole_N, gang("a", 4, excluded=frozenset({NodeId("r0n0"), NodeId("gone")}))) == 4


def test_what_is_free_already_is_taken_before_what_will_be_free():
    room = room_of(racks(2))
    first_N = free(room, r0n0=0, r0n1=0, r1n0=1)
    share = room.choose(room.whole_N, gang("a", 6, required_level="rack"), first_N=first_N)
    assert room.by_node(share) == {"r1n1": 4, "r1n0": 2}


def test_a_tree_for_a_solver_holds_what_the_gang_may_have_and_no_more():
    room = room_of(racks(1))
    tree = room.tree_for(np.array([0, 1]), {0: (1, 3), 1: ()})
    assert [(node.id, node.usable_slot_indexes) for node in tree.nodes] == [("r0n0", (1, 3))]


def test_paths_name_domains_and_nodes():
    room = room_of(racks(2, blocks=2))
    nodes = room.within(1, 1)
    assert room.path(nodes, 1) == ("b1", "r1")
    assert room.path(nodes[:1], 2) == ("b1", "r1", "r1n0")
    assert room.path(nodes, FLEET) == ()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_gang_fits_where_the_solver_places_it_and_the_choice_is_whole(seed):
    rng = random.Random(seed)
    tree = replace(racks(4, blocks=2), scale_up_level=rng.choice([None, None, "rack", "block"]))
    tree = replace(tree, nodes=tuple(replace(node, num_free_slots=rng.randint(0, 4)) for node in tree.nodes))
    tp = rng.choice([1, 2, 4])
    level = rng.choice([None, "block", "rack", "node"])
    asked = gang("a", tp * rng.randint(1, 6), tp=tp, required_level=level)
    room = room_of(tree)
    problem = PlacementProblem(layout=asked.layout, tree=tree, required_level=level)
    placed = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert room.fits(room.whole_N, asked) == isinstance(placed, Placed)
    if not isinstance(placed, Placed):
        return
    for first_N in (None, room.whole_N // 2):
        nodes, counts = room.choose(room.whole_N, asked, first_N=first_N)
        assert counts.sum() == asked.num_slots
        assert np.all(counts <= room.whole_N[nodes])
        alone_N = np.zeros_like(room.whole_N)
        alone_N[nodes] = counts
        assert room.fits(alone_N, asked), "what was chosen holds the gang by itself"


def test_of_domains_that_hold_a_gang_one_whose_inner_links_are_idle_comes_first():
    tree = racks(4, blocks=2)
    used = replace(tree, nodes=(replace(tree.nodes[0], num_free_slots=3, free_slots=(0, 1, 2)), *tree.nodes[1:]))

    def first(of: TopologyTree, size: int) -> list[str]:
        room = room_of(of)
        return [room.nodes[node].id for node in next(room.domains(room.whole_N, gang("a", size)))]

    busy = with_busy_links(used, {("b0", "r0"): 0.6, ("b0", "r1"): 0.6})
    assert first(used, 12) == ["r0n0", "r0n1", "r1n0", "r1n1"], "the block with least to spare"
    assert first(busy, 12) == ["r2n0", "r2n1", "r3n0", "r3n1"]
    assert first(with_busy_links(used, {("b0", "r0"): 0.04}), 12) == first(used, 12), "as good as idle"
    assert first(busy, 6) == first(used, 6) == ["r0n0", "r0n1"], "inside a rack it uses no link of it"
