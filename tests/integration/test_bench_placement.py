"""The placement bench in a small form: every row is measured, none of them long enough to say anything."""

from __future__ import annotations

import pytest

from airflow_llmsched.planner.placement.fleet import FleetSolver
from tests.bench import placement_gangs
from tests.bench.placement_judge.fleet import Fleet
from tests.bench.placement_judge.judged import Judged
from tests.bench.placement_judge.mixes import Job, Mix, mix_of
from tests.bench.placement_judge.random_nodes import RandomNodes
from tests.bench.placement_judge.replay import Baseline
from tests.bench.placement_judge.slurm_tree import SlurmTree
from tests.bench.placement_steps import MOST_FREE, OURS, RANDOM, SLURM, outcome_of, rows_of
from tests.bench.spread import spread


def fleet() -> Fleet:
    paths = [("core", f"pod{node // 8}", f"switch{node // 4}") for node in range(16)]
    return Fleet.of(paths, levels=("DSW", "PSW", "ASW"), num_slots=8)


def mix() -> Mix:
    jobs = [Job(arrival_s=10.0 * at, duration_s=60.0, num_slots=(8, 16)[at % 2]) for at in range(20)]
    return mix_of("small", jobs, fleet_slots=128, load=0.7, num_arrivals=40, seed=3)


def test_ours_is_compared_with_each_baseline_on_a_mix():
    placers = {OURS: Judged(FleetSolver(), time_limit_s=0.1), SLURM: Baseline(SlurmTree())}
    placers |= {MOST_FREE: Baseline(SlurmTree()), RANDOM: Baseline(RandomNodes(1))}
    outcomes = {
        name: outcome_of(mix(), fleet(), placer, num_looks=2, num_hashes=2, seed=0) for name, placer in placers.items()
    }
    rows = rows_of("small", [mix()], [outcomes])
    by_name = {row.name: row for row in rows}
    blind = by_name["small: step time over random's"]
    assert blind.below == 1.0
    assert blind.value < 1.0
    assert by_name[f"small: step time over {SLURM}'s"].value == by_name[f"small: step time over {MOST_FREE}'s"].value
    (whole,) = [row for row in rows if "whole switches" in row.name]
    assert whole.above == max(outcomes[name].whole_hosts for name in (SLURM, MOST_FREE, RANDOM))
    assert by_name["small: refused gangs"].reference.keys() == {SLURM, MOST_FREE, RANDOM}


def test_a_stream_of_gangs_is_placed_and_given_back():
    row = placement_gangs.measured_stream(seed=0, num_queues=1, num_racks=1)
    assert row.name == "500 gangs arriving on 64 nodes"
    assert row.reference["refused"] == 0
    assert row.value > 0


def test_the_stream_has_the_classes_of_kueues_run():
    coming = placement_gangs.arrivals(0)
    assert len(coming) == 15_000
    assert sum(each.num_ranks == 8 for _, each in coming) == 30 * 50
    assert sum(each.required for _, each in coming) == 30 * (120 + 34 + 17)


def test_who_has_run_leaves_before_the_next_comes():
    one = placement_gangs.WorkloadClass(count=1, num_ranks=1, every_s=1.0, run_s=1.0)
    told = []
    placement_gangs.stream(
        [(0.0, one), (0.5, one), (1.2, one)], lambda each: told.append("comes"), lambda held: told.append("leaves")
    )
    assert told == ["comes", "comes", "leaves", "comes"]


def test_an_update_is_timed():
    row = placement_gangs.measured_update(seed=0, sizes=(1, 2, 2, 4), num_updates=10)
    assert row.name.startswith("update after one node change at 16 nodes")
    assert row.value > 0


def test_the_large_gang_is_placed_in_a_process_that_says_what_it_took():
    found = placement_gangs.placed_large("fleet", 0)
    assert found["place_s"] > 0
    assert found["peak_rss_bytes"] >= found["rss_before_bytes"] > 0


@pytest.mark.parametrize("num_processes", [1, 2])
def test_answers_come_in_the_order_of_the_questions(num_processes):
    assert spread(abs, [-3, 0, 2], num_processes=num_processes) == [3, 0, 2]
