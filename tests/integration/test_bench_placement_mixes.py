"""Mixes of gangs, their replay and the verdict on it, on small fleets; recorded ones where the records are at hand."""

from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from tests.bench.placement_judge.fleet import Fleet, Seats
from tests.bench.placement_judge.gangs import Gang, Kind, draw_gang
from tests.bench.placement_judge.judged import Judged, tree_of
from tests.bench.placement_judge.mixes import DATA, MIXES, Job, Mix, Stay, lingjun, mix_of
from tests.bench.placement_judge.random_nodes import RandomNodes
from tests.bench.placement_judge.replay import Baseline, replayed, whole_hosts
from tests.bench.placement_judge.slurm_tree import SlurmTree
from tests.bench.placement_judge.verdict import fabric_of, ratios, step_times, summary

recorded = pytest.mark.skipif(not DATA.exists(), reason=f"the recorded jobs are not at {DATA}: they are not shipped")
LEVELS = ("DSW", "PSW", "ASW")


def small_fleet() -> Fleet:
    """Two pods of four access switches with four nodes each."""
    paths = [("core", f"pod{node // 16}", f"switch{node // 4}") for node in range(32)]
    return Fleet.of(sorted(paths), levels=LEVELS, num_slots=8)


def small_mix(seed: int = 0) -> Mix:
    jobs = [Job(arrival_s=10.0 * at, duration_s=50.0 + at % 7, num_slots=(4, 8, 8, 16)[at % 4]) for at in range(60)]
    return mix_of("small", jobs, fleet_slots=256, load=0.7, num_arrivals=120, seed=seed)


def gang(num_slots: int, *, id_: int = 0) -> Gang:
    return draw_gang(np.random.default_rng(id_), id_=id_, num_slots=num_slots)


@pytest.mark.parametrize("num_slots", [1, 2, 4, 8, 16, 24, 48, 64, 96, 256, 1024])
def test_a_gang_has_the_size_that_is_asked_for_and_every_rank_in_one_group_of_each_kind(num_slots):
    for seed in range(20):
        drawn = gang(num_slots, id_=seed)
        assert drawn.num_slots == drawn.layout.world_size == num_slots
        assert drawn.compute_s > 0
        for exchange in drawn.exchanges:
            assert sorted(exchange.ranks_GM.ravel().tolist()) == list(range(num_slots))
            assert exchange.bytes_per_flow >= 0


def test_gangs_on_several_nodes_are_split_in_every_way():
    assert {gang(64, id_=seed).kind for seed in range(30)} == set(Kind)


def test_gradients_of_a_dense_model_go_round_the_replicas_in_the_bytes_that_megatron_counts():
    for seed in range(30):
        drawn = gang(64, id_=seed)
        if drawn.kind is Kind.THREE_D and drawn.layout.pp == 2:
            break
    (data_parallel,) = [each for each in drawn.exchanges if each.name == "dp"]
    # 34e9 parameters over 16 ranks, 4 bytes scattered and 2 gathered, 3 of 4 parts go over each hop
    assert data_parallel.bytes_per_flow == pytest.approx(34e9 / 16 * 6 * 3 / 4)


def test_a_mix_is_as_busy_as_asked_for_and_the_same_for_the_same_seed():
    mix = small_mix()
    assert [stay.gang.id for stay in mix.stays] == list(range(len(mix.stays)))
    assert [stay.arrival_s for stay in mix.stays] == sorted(stay.arrival_s for stay in mix.stays)
    span_s = mix.stays[-1].arrival_s
    work = sum(stay.gang.num_slots * (stay.end_s - stay.arrival_s) for stay in mix.stays[mix.num_present :])
    assert work / span_s / 256 == pytest.approx(0.7)
    assert [stay.end_s for stay in small_mix().stays] == [stay.end_s for stay in mix.stays]
    assert [stay.end_s for stay in small_mix(1).stays] != [stay.end_s for stay in mix.stays]


def test_who_leaves_does_so_before_who_comes_later():
    first, second = (Stay(gang=gang(8, id_=id_), arrival_s=10.0 * id_, end_s=15.0 * id_ + 5) for id_ in (0, 1))
    assert list(Mix(name="two", stays=(first, second), num_present=0).events()) == [
        (True, first),
        (False, first),
        (True, second),
    ]


@pytest.mark.parametrize(
    "placer",
    [Baseline(SlurmTree()), Baseline(RandomNodes(1)), Judged(BestFitSolver())],
    ids=["slurm", "random", "ours"],
)
def test_a_replay_gives_back_what_it_took(placer):
    fleet, mix = small_fleet(), small_mix()
    played = replayed(mix, fleet, placer, num_snapshots=4)
    assert len(played.snapshots) == 4
    held = sum(len(seats.node_R) for seats in played.snapshots[-1].seats.values())
    assert held == int((~fleet.free_NS).sum())
    assert not played.refused & played.snapshots[-1].seats.keys()


def test_a_refused_gang_is_counted_and_goes_away():
    stays = tuple(Stay(gang=gang(256, id_=id_), arrival_s=0.0, end_s=1.0) for id_ in (0, 1))
    played = replayed(
        Mix(name="two", stays=stays, num_present=1), small_fleet(), Baseline(SlurmTree()), num_snapshots=1
    )
    assert played.refused == {1}
    assert played.snapshots[0].seats.keys() == {0}


def test_a_placer_that_seats_too_few_ranks_is_caught():
    class Short:
        def place(self, fleet, gang):
            return Seats(np.array([0]), np.array([0]))

    mix = Mix(name="one", stays=(Stay(gang=gang(8), arrival_s=0.0, end_s=1.0),), num_present=0)
    with pytest.raises(ValueError, match="8 ranks, but 1 seats"):
        replayed(mix, small_fleet(), Short(), num_snapshots=1)


def test_whole_hosts_are_those_of_wholly_idle_switches_of_one_pod():
    fleet = small_fleet()
    assert whole_hosts(fleet) == 16
    fleet.free_NS[0, 3] = False
    fleet.free_NS[17] = False
    assert whole_hosts(fleet) == 12
    fleet.free_NS[20] = False
    assert whole_hosts(fleet) == 12
    fleet.free_NS[:16] = False
    assert whole_hosts(fleet) == 8


def test_a_solver_of_ours_sees_the_fleet_as_it_is():
    fleet = small_fleet()
    fleet.free_NS[5, [0, 3]] = False
    tree = tree_of(fleet)
    assert len(tree.nodes) == 32
    assert tree.levels == LEVELS
    assert tree.nodes[5].usable_slot_indexes == (1, 2, 4, 5, 6, 7)
    assert {len(nodes) for nodes in tree.domains("ASW").values()} == {4}
    assert [node.id for node in sorted(tree.nodes, key=lambda node: (node.path, node.id))] == [
        node.id for node in tree.nodes
    ]


def test_random_placement_makes_steps_longer_than_a_tree_does():
    mix, fleet = small_mix(), small_fleet()
    fabrics = [fabric_of(fleet, salt=salt) for salt in range(2)]
    gangs = {stay.gang.id: stay.gang for stay in mix.stays}
    tree, blind = (
        step_times(mix, replayed(mix, small_fleet(), placer, num_snapshots=3), fabrics, seed=0)
        for placer in (Baseline(SlurmTree()), Baseline(RandomNodes(1)))
    )
    found = summary(ratios(gangs, tree, blind))
    assert found.mean < 0.95
    assert found.num_gangs > 10
    assert summary(ratios(gangs, tree, tree)).mean == 1.0


def test_nothing_is_concluded_from_gangs_that_never_meet():
    with pytest.raises(ValueError, match="no gang spans nodes"):
        summary(np.zeros(0))


@recorded
def test_the_lingjun_fleet_has_847_hosts_below_three_pods():
    fleet = lingjun()
    assert fleet.num_nodes == 847
    assert [len(set(row)) for row in fleet.domain_LN.tolist()] == [1, 3, 119]


@recorded
@pytest.mark.parametrize("name", MIXES)
def test_recorded_mixes_keep_the_fleet_from_60_to_90_percent_busy(name):
    fleet = lingjun()
    mix = mix_of(name, MIXES[name](), fleet_slots=fleet.free_NS.size, load=0.75, num_arrivals=1000, seed=0)
    played = replayed(mix, fleet, Baseline(SlurmTree()), num_snapshots=20)
    assert 0.6 < np.mean([snapshot.busy_ratio for snapshot in played.snapshots]) < 0.9
    assert len(mix.stays) - len(played.snapshots[-1].seats) > 900
    assert any(stay.gang.spans_nodes for stay in mix.stays)
