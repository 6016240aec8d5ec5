from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner.queue import victims
from airflow_llmsched.planner.queue.room import FLEET, Room
from airflow_llmsched.planner.queue.victims import Candidate, Cover, cheapest_cover
from tests.support.queues import gang, racks


def candidate(room: Room, key: str, held: dict[str, int], cost: float) -> Candidate:
    share = room.share_of({NodeId(node): number for node, number in held.items()})
    asked_Q = np.array([float(share[1].sum()), 0.0, 0.0])
    return Candidate(key=RunKey(key), team=0, share=share, asked_Q=asked_Q, cost_accelerator_s=cost)


def anyone(_: Sequence[Candidate], __: np.ndarray) -> bool:
    return True


def keys(cover: Cover | None) -> set[str]:
    assert cover is not None
    return {each.key for each in cover.victims}


def test_one_domain_is_freed_rather_than_slots_here_and_there():
    room = Room.of(racks(2), (), ())
    found = [
        candidate(room, "a", {"r0n0": 4}, 5.0),
        candidate(room, "b", {"r0n1": 4}, 5.0),
        candidate(room, "c", {"r1n0": 4}, 1.0),
        candidate(room, "d", {"r1n1": 4}, 100.0),
    ]
    cover = cheapest_cover(room, np.zeros(4, dtype=np.int64), gang("u", 8), found, anyone, is_monotone=True)
    assert keys(cover) == {"a", "b"}
    assert room.path(cover.nodes, cover.depth) == ("b0", "r0")


def test_the_whole_fleet_is_looked_at_only_for_a_gang_that_no_domain_holds():
    room = Room.of(racks(2), (), ())
    found = [candidate(room, f"{rack}{node}", {f"r{rack}n{node}": 4}, 1.0) for rack in (0, 1) for node in (0, 1)]
    cover = cheapest_cover(room, np.zeros(4, dtype=np.int64), gang("u", 12), found, anyone, is_monotone=True)
    assert cover is not None
    assert len(cover.victims) == 3
    assert cover.depth == 0, "a block holds it"
    apart = Room.of(racks(2, blocks=2), (), ())
    cover = cheapest_cover(apart, np.zeros(4, dtype=np.int64), gang("u", 12), found, anyone, is_monotone=True)
    assert cover is not None
    assert cover.depth == FLEET


def test_a_gang_that_reaches_into_other_domains_costs_all_that_it_loses():
    room = Room.of(racks(2), (), ())
    wide = candidate(room, "wide", {"r0n0": 4, "r1n0": 4}, 80.0)
    near = candidate(room, "near", {"r0n1": 4}, 50.0)
    free_N = np.zeros(4, dtype=np.int64)
    assert keys(cheapest_cover(room, free_N, gang("u", 4), [wide, near], anyone, is_monotone=True)) == {"near"}


def test_nobody_goes_where_it_would_not_help():
    room = Room.of(racks(2), (), ())
    few = [candidate(room, "a", {"r0n0": 2}, 1.0)]
    free_N = np.zeros(4, dtype=np.int64)
    assert cheapest_cover(room, free_N, gang("u", 4), few, anyone, is_monotone=True) is None
    assert cheapest_cover(room, free_N, gang("u", 4), [], anyone, is_monotone=True) is None
    excluding = gang("u", 2, excluded=frozenset({NodeId("r0n0")}))
    assert cheapest_cover(room, free_N, excluding, few, anyone, is_monotone=True) is None


def test_sets_that_are_not_allowed_are_passed_over():
    room = Room.of(racks(1), (), ())
    found = [candidate(room, "cheap", {"r0n0": 4}, 1.0), candidate(room, "dear", {"r0n1": 4}, 9.0)]

    def allows(chosen: Sequence[Candidate], _: np.ndarray) -> bool:
        return "dear" in {each.key for each in chosen}

    free_N = np.zeros(2, dtype=np.int64)
    assert keys(cheapest_cover(room, free_N, gang("u", 4), found, allows, is_monotone=True)) == {"dear"}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_cheapest_is_what_brute_force_finds_and_many_are_near_it(seed):
    rng = random.Random(seed)
    room = Room.of(racks(3, nodes=2), (), ())
    found, free_N = [], np.zeros(6, dtype=np.int64)
    for number, node in enumerate(room.nodes):
        cut = rng.randint(1, 3)
        for part, size in enumerate((cut, 4 - cut)):
            found.append(candidate(room, f"g{number}{part}", {node.id: size}, float(rng.randint(1, 40))))
    asked = gang("u", 2 * rng.randint(1, 4), tp=2, required_level="rack")
    expected = min(
        sum(each.cost_accelerator_s for each in chosen)
        for rack in range(3)
        for number in range(1, 5)
        for chosen in combinations([each for each in found if room.domain_LN[1, each.share[0][0]] == rack], number)
        if room.fits(_freed(free_N, chosen), asked)
    )
    exact = cheapest_cover(room, free_N, asked, found, anyone, is_monotone=True)
    assert exact is not None
    assert exact.cost_accelerator_s == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victims, "MAX_EXACT", 0)
        greedy = cheapest_cover(room, free_N, asked, found, anyone, is_monotone=True)
    assert greedy is not None
    assert room.fits(_freed(free_N, greedy.victims), asked)
    for each in greedy.victims:
        fewer = [other for other in greedy.victims if other is not each]
        assert not room.fits(_freed(free_N, fewer), asked), "nobody goes who need not"


@pytest.mark.parametrize("max_exact", [victims.MAX_EXACT, 0])
def test_room_is_made_for_groups_that_must_stay_together(max_exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four slots lack, and any of those of the cheaper gangs would do for a gang without groups."""
    monkeypatch.setattr(victims, "MAX_EXACT", max_exact)
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    asked = replace(gang("u", 16, group_levels=(wish,)), layout=ParallelLayout(dp=8, pp=2))
    room = Room.of(racks(3), (), ())
    costs = {"r0n0": 1.0, "r0n1": 2.0, "r1n0": 3.0, "r1n1": 40.0, "r2n0": 9.0, "r2n1": 9.0}
    found = [candidate(room, node, {node: 4}, cost) for node, cost in costs.items()]
    free_N = np.zeros(6, dtype=np.int64)
    cover = cheapest_cover(room, free_N, asked, found, anyone, is_monotone=True)
    assert cover is not None
    assert room.fits(_freed(free_N, cover.victims), asked)
    assert keys(cover) == {"r0n0", "r0n1", "r2n0", "r2n1"}


def _freed(free_N: np.ndarray, chosen: Sequence[Candidate]) -> np.ndarray:
    result = free_N.copy()
    for each in chosen:
        result[each.share[0]] += each.share[1]
    return result
