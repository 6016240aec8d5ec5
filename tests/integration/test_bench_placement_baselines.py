"""The baselines of the placement bench, on the examples that their own documentation gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.placement_judge.fleet import Ask, Fleet
from tests.bench.placement_judge.kueue_tas import KueueTas, Profile
from tests.bench.placement_judge.random_nodes import RandomNodes
from tests.bench.placement_judge.slurm_tree import SlurmTree
from tests.bench.placement_judge.volcano_hypernodes import VolcanoHyperNodes

LEAF, TOP = 1, 0
BASELINES = {
    "slurm": SlurmTree(),
    **{profile.value: KueueTas(profile) for profile in Profile},
    "volcano": VolcanoHyperNodes(),
    "random": RandomNodes(7),
}


def fleet(*leaves: list[int], top: list[str] | None = None, num_slots: int = 1) -> Fleet:
    """Nodes by leaf switch, each with so many free slots; the tops of the leaves are all one unless named."""
    tops = top or ["top"] * len(leaves)
    paths = [(tops[at], f"leaf-{at}") for at, leaf in enumerate(leaves) for _ in leaf]
    made = Fleet.of(paths, levels=("top", "leaf"), num_slots=num_slots)
    for node, free in enumerate(free for leaf in leaves for free in leaf):
        made.free_NS[node, free:] = False
    return made


def chosen(policy, on: Fleet, ask: Ask) -> list[int] | None:
    pods_N = policy.choose(on, ask)
    return None if pods_N is None else pods_N.tolist()


def pods(count: int, **more: int) -> Ask:
    return Ask(num_pods=count, slots_per_pod=1, **more)


RACK = fleet([3, 3, 2, 1], num_slots=3)
"""Kueue's example: four nodes that can take 3, 3, 2 and 1 pod."""


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (Profile.BEST_FIT, [3, 3, 0, 1]),
        (Profile.MOST_FREE, [3, 3, 1, 0]),
        (Profile.LEAST_FREE, [1, 3, 2, 1]),
    ],
)
def test_kueue_places_seven_pods_as_its_design_document_says(profile, expected):
    # of two equal nodes the first comes first: least-free-capacity reserves one pod on the last, whichever that is
    placed = chosen(KueueTas(profile), RACK, pods(7))
    assert placed is not None
    assert sorted(placed[:2]) == sorted(expected[:2])
    assert placed[2:] == expected[2:]


def test_kueue_looks_for_a_preferred_domain_from_its_level_upwards_and_spreads_last():
    two_tops = fleet([1, 1], [1, 1, 1], [1], [1, 1], top=["a", "a", "b", "b"])
    kueue = KueueTas(Profile.BEST_FIT)
    assert chosen(kueue, two_tops, pods(2, preferred_level=LEAF)) == [1, 1, 0, 0, 0, 0, 0, 0]
    assert chosen(kueue, two_tops, pods(5, preferred_level=LEAF)) == [1, 1, 1, 1, 1, 0, 0, 0]
    assert sum(chosen(kueue, two_tops, pods(7, preferred_level=LEAF)) or []) == 7
    assert chosen(kueue, two_tops, pods(9, preferred_level=LEAF)) is None


def test_kueue_waits_for_a_required_domain():
    leaves = fleet([1, 1], [1, 1, 1])
    assert chosen(KueueTas(Profile.BEST_FIT), leaves, pods(3, required_level=LEAF)) == [0, 0, 1, 1, 1]
    assert chosen(KueueTas(Profile.BEST_FIT), leaves, pods(4, required_level=LEAF)) is None


def test_most_free_capacity_breaks_into_the_emptiest_rack_where_best_fit_takes_the_tightest():
    leaves = fleet([1, 1], [1, 1, 1])
    assert chosen(KueueTas(Profile.MOST_FREE), leaves, pods(2, preferred_level=LEAF)) == [0, 0, 1, 1, 0]
    assert chosen(KueueTas(Profile.BEST_FIT), leaves, pods(2, preferred_level=LEAF)) == [1, 1, 0, 0, 0]


def test_slurm_finds_the_lowest_switch_of_the_first_example_in_its_guide():
    # tux[0-7] below s0..s3, those below s4 and s5, all below s6; tux1 is busy
    paths = [("s6", f"s{4 + node // 4}", f"s{node // 2}") for node in range(8)]
    tux = Fleet.of(paths, levels=("core", "spine", "leaf"), num_slots=1)
    tux.free_NS[1] = False
    assert chosen(SlurmTree(), tux, pods(1)) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert chosen(SlurmTree(), tux, pods(2)) == [0, 0, 1, 1, 0, 0, 0, 0]
    assert chosen(SlurmTree(), tux, pods(3)) == [1, 0, 1, 1, 0, 0, 0, 0]
    assert chosen(SlurmTree(), tux, pods(4)) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert chosen(SlurmTree(), tux, pods(5)) == [1, 0, 1, 1, 1, 1, 0, 0]


def test_slurm_takes_the_largest_leaves_whole_and_the_rest_where_it_fits_best():
    # the second example of its guide, four leaves of four nodes below one switch
    four = fleet([1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0])
    assert chosen(SlurmTree(), four, pods(6)) == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_slurm_spans_no_switches_without_a_common_parent():
    apart = fleet([1, 1], [1, 1], top=["a", "b"])
    assert chosen(SlurmTree(), apart, pods(2)) == [1, 1, 0, 0]
    assert chosen(SlurmTree(), apart, pods(3)) is None


def test_a_slurm_job_waits_for_the_switches_it_accepts():
    spread = fleet([1, 0], [1, 0], [1, 0])
    assert chosen(SlurmTree(), spread, pods(2)) == [1, 0, 1, 0, 0, 0]
    assert chosen(SlurmTree(max_switches=1), spread, pods(2)) is None
    assert chosen(SlurmTree(max_switches=2), spread, pods(2)) == [1, 0, 1, 0, 0, 0]


def test_volcano_packs_two_pods_beside_what_runs_as_its_example_of_eight_nodes_shows():
    paths = [("hypernode6", f"hypernode{4 + node // 4}", f"hypernode{node // 2}") for node in range(8)]
    eight = Fleet.of(paths, levels=("3", "2", "1"), num_slots=1)
    eight.free_NS[[0, 2, 4]] = False
    assert np.flatnonzero(VolcanoHyperNodes().choose(eight, pods(2))).tolist() == [1, 3]
    # with the constraint the search ends at the lowest tier with a HyperNode that holds both
    assert np.flatnonzero(VolcanoHyperNodes().choose(eight, pods(2, preferred_level=2))).tolist() == [6, 7]


def test_volcano_prefers_the_fuller_hypernode_and_keeps_the_empty_one_whole():
    two = fleet([1, 1, 0, 0], [1, 1, 1, 1])
    volcano = VolcanoHyperNodes()
    first = volcano.choose(two, pods(1, required_level=LEAF))
    two.take(two.seats(first, pods(1)))
    second = volcano.choose(two, pods(1, required_level=LEAF))
    assert (first + second).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


def test_volcano_stops_at_the_highest_tier_that_hard_mode_allows():
    leaves = fleet([1, 1], [1, 1, 1])
    assert chosen(VolcanoHyperNodes(), leaves, pods(4, required_level=LEAF)) is None
    assert sum(chosen(VolcanoHyperNodes(), leaves, pods(4, preferred_level=LEAF)) or []) == 4


def test_random_placement_uses_every_node_alike():
    idle = fleet([1] * 5, [1] * 5)
    policy = RandomNodes(3)
    drawn = sum(policy.choose(idle, pods(4)) for _ in range(2000))
    assert drawn.sum() == 8000
    assert drawn == pytest.approx(np.full(10, 800), rel=0.1)


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_places_all_pods_or_none_and_never_beyond_what_is_free(name):
    rng = np.random.default_rng(11)
    policy = BASELINES[name]
    for _ in range(200):
        leaves = [rng.integers(0, 9, size=rng.integers(1, 6)).tolist() for _ in range(rng.integers(1, 5))]
        on = fleet(*leaves, num_slots=8)
        level = [None, TOP, LEAF][rng.integers(3)]
        ask = Ask(num_pods=int(rng.integers(1, 9)), slots_per_pod=int(rng.choice([1, 2, 8])), required_level=level)
        pods_N = policy.choose(on, ask)
        room_N = np.minimum(on.pods_N(ask), 1) if name == "slurm" else on.pods_N(ask)
        rooms = room_N.sum() if level is None else np.bincount(on.domain_LN[level], weights=room_N).max()
        assert (pods_N is None) == (rooms < ask.num_pods)
        if pods_N is None:
            continue
        assert pods_N.sum() == ask.num_pods
        assert (pods_N <= room_N).all()
        seats = on.seats(pods_N, ask)
        assert len(seats.node_R) == ask.num_slots
        on.take(seats)
        if level is not None:
            assert len(set(on.domain_LN[level][seats.node_R])) == 1


def test_slots_are_given_away_once_and_come_back_once():
    on = fleet([2], num_slots=2)
    seats = on.seats(np.array([2]), pods(2))
    on.take(seats)
    with pytest.raises(ValueError, match="given away twice"):
        on.take(seats)
    on.give_back(seats)
    with pytest.raises(ValueError, match="was free"):
        on.give_back(seats)


def test_nodes_out_of_path_order_are_refused():
    with pytest.raises(ValueError, match="path order"):
        Fleet.of([("b",), ("a",)], levels=("rack",), num_slots=1)
