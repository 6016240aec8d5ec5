from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.crossed import MAX_NODES
from airflow_llmsched.planner.queue.decide import placing_by
from airflow_llmsched.planner.queue.group_room import GroupRoom
from airflow_llmsched.planner.queue.room import FLEET, Room
from tests.support.queues import drawn_groups, gang, racks

REPLICAS = PlacementWish(group=RankGroup.DP, level="rack", required=True)
PIPELINES = PlacementWish(group=RankGroup.PP, level="rack", required=True)


def asked(layout: ParallelLayout, *wishes: PlacementWish, num_helper_slots: int = 0) -> QueuedGang:
    return replace(gang("a", group_levels=wishes, num_helper_slots=num_helper_slots), layout=layout)


def test_each_rack_gives_whole_replica_groups():
    room, stages = Room.of(racks(3), (), ()), asked(ParallelLayout(dp=6, pp=2), REPLICAS)
    assert room.rooms_for(room.whole_N, stages, depth=1).tolist() == [6, 6, 6]
    assert room.rooms_for(room.whole_N, stages, depth=2).tolist() == [4] * 6, "groups may leave nodes"
    assert room.rooms_for(room.whole_N, stages, depth=FLEET).tolist() == [24], "it fits: any slot does for more"
    assert room.most(np.array([4, 1, 4, 1, 4, 4]), stages) == 6
    assert room.fits(np.array([4, 2, 4, 1, 4, 4]), stages)


def test_whole_pipelines_fit_into_racks_on_nodes_with_equal_shares():
    room, stages = Room.of(racks(2), (), ()), asked(ParallelLayout(dp=4, pp=2), PIPELINES)
    assert room.fits(room.whole_N, stages)
    assert room.fits(np.array([2, 3, 2, 2]), stages), "two of each node"
    assert not room.fits(np.array([4, 0, 4, 0]), stages), "one stage's ranks of a node are in a row"


def test_helpers_take_what_ranks_leave():
    room = Room.of(racks(2), (), ())
    one = asked(ParallelLayout(dp=6, pp=2), REPLICAS, num_helper_slots=1)
    assert room.fits(np.array([4, 3, 4, 2]), one)
    assert not room.fits(np.array([4, 2, 4, 2]), one)
    nodes, counts = room.choose(np.array([4, 3, 4, 2]), one)
    assert (nodes.tolist(), counts.tolist()) == ([0, 1, 2, 3], [4, 3, 4, 2])


def test_what_is_free_already_is_taken_before_what_will_be_free():
    room, first_N = Room.of(racks(3), (), ()), np.array([0, 0, 4, 4, 1, 1])
    share = room.choose(room.whole_N, asked(ParallelLayout(dp=8), REPLICAS), first_N=first_N)
    assert room.by_node(share) == {"r1n0": 4, "r1n1": 4}


def test_only_solvers_know_every_way_of_small_gangs_with_pipelines():
    tree = racks(1)
    assert GroupRoom.of(tree, asked(ParallelLayout(dp=8), REPLICAS), largest=4).is_all
    assert GroupRoom.of(tree, asked(ParallelLayout(dp=512, pp=2), PIPELINES), largest=4).is_all
    small = GroupRoom.of(tree, asked(ParallelLayout(dp=2, pp=2), PIPELINES), largest=4)
    assert not small.is_all
    assert small.may_have_others(np.ones(MAX_NODES))
    assert not small.may_have_others(np.ones(MAX_NODES + 1))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1_000_000))
def test_a_gang_fits_where_the_solver_places_it_and_the_solver_places_it_on_what_is_chosen(seed: int):
    rng = random.Random(seed)
    tree = replace(racks(4, blocks=2), scale_up_level=rng.choice([None, None, "rack"]))
    tree = replace(tree, nodes=tuple(replace(node, num_free_slots=rng.randint(0, 4)) for node in tree.nodes))
    one = drawn_groups(rng, "a", required_level=rng.choice([None, None, "block"]))
    room = Room.of(tree, (), ())
    kept = room.kept(one)
    assert kept is not None
    placed = placing_by(BestFitSolver(), time_limit_s=0.0)(one, tree)
    fits = room.fits(room.whole_N, one)
    if fits or (kept.is_all and not one.num_helper_slots):  # a solver places ranks alone
        assert fits == isinstance(placed, Placed)
    assert bool(kept.is_room_M(room.whole_N[None], np.arange(8), needed=one.num_slots)[0]) >= fits
    if not fits:
        return
    for first_N in (None, room.whole_N // 2):
        share = room.choose(room.whole_N, one, first_N=first_N)
        assert share[1].sum() == one.num_slots
        assert np.all(share[1] <= room.whole_N[share[0]])
        assert room.holds(share, one)
        offered = {node: tuple(range(number)) for node, number in zip(*map(np.ndarray.tolist, share), strict=True)}
        problem = PlacementProblem(
            layout=one.layout,
            tree=room.tree_for(share[0], offered),
            required_level=one.required_level,
            wishes=one.group_levels,
        )
        assert isinstance(BestFitSolver().place(problem, time_limit_s=0.0, seed=0), Placed)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1_000_000))
def test_sets_that_go_are_looked_at_together_as_they_are_one_by_one(seed: int):
    rng = random.Random(seed)
    room, one = Room.of(racks(4, blocks=2), (), ()), drawn_groups(rng, "a")
    free_MN = np.array([[rng.randint(0, 4) for _ in range(4)] for _ in range(8)])
    kept, nodes = room.kept(one), np.arange(4, 8)
    assert kept is not None
    alone_MN = np.zeros((8, 8), dtype=np.int64)
    alone_MN[:, nodes] = free_MN
    expected = [room.fits(alone_N, one) for alone_N in alone_MN]
    assert kept.is_room_M(free_MN, nodes, needed=one.num_slots).tolist() == expected
