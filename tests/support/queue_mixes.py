"""Queues that are drawn: mixes of gangs to replay, small states whose front brute force finds, and how teams fare."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations, product
from statistics import mean

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.queue import QueueState
from airflow_llmsched.planner.queue.choices import Choice, costs_of
from airflow_llmsched.planner.queue.decide import decide
from tests.support.queue_sim import History, Job
from tests.support.queues import PLACE, gang, racks, runs_on, state_of, waits

CostRow = tuple[float, ...]


def flood_and_few(seed: int, *, scale: int = 1) -> list[Job]:
    """Return a flood of one team's gangs, another's few and some urgent ones: for 32 accelerators times ``scale``."""
    rng = random.Random(seed)
    jobs: list[Job] = []
    for number in range(16 * scale):
        size, at_s, work_s = rng.choice([2, 4, 8, 16, 24]), rng.randint(0, 20), rng.randint(20, 120)
        jobs.append(Job(gang=gang(f"red{number}", size), at_s=float(at_s), work_s=float(work_s)))
    for number in range(5 * scale):
        size, at_s, work_s = rng.choice([2, 4, 8]), rng.randint(20, 60), rng.randint(20, 60)
        jobs.append(Job(gang=gang(f"blue{number}", size, team="blue"), at_s=float(at_s), work_s=float(work_s)))
    for number in range(3 * scale):
        at_s = 100.0 + 80.0 * number / scale
        jobs.append(Job(gang=gang(f"hot{number}", 8, cls="urgent"), at_s=at_s, work_s=20.0))
    return jobs


def slowdown(history: History, jobs: list[Job], team: str) -> float:
    """Return how many times as long as their work a team's gangs took, on average."""
    return mean(history.completion_s(each.gang.key) / each.work_s for each in jobs if each.gang.team == team)


def small_state(seed: int) -> QueueState:
    """Return a rack of 8 accelerators, some of them held, and up to four gangs that want more than there is."""
    rng = random.Random(seed)
    running = []
    for node in (0, 1):
        size = rng.randint(0, 3)
        if size:
            asked = gang(f"r{node}", size, cls="low", team=rng.choice(["red", "blue"]))
            running.append(runs_on(asked, {f"r0n{node}": size}, ends=float(rng.randint(70, 500)), saved=-30.0))
    waiting = [
        waits(
            gang(
                f"w{number}", rng.randint(1, 6), team=rng.choice(["red", "blue"]), cls=rng.choice(["low", "urgent"])
            ),
            since=-float(number), runs=float(rng.randint(10, 300)),
        )
        for number in range(rng.randint(1, 4))
    ]  # fmt: skip
    often = {NodeId("r0n0"): rng.choice([0.0, 0.02]), NodeId("r0n1"): 0.01}
    return state_of(racks(1), *running, *waiting, failures_per_hour=often)


def front_by_brute_force(state: QueueState) -> set[CostRow]:
    """Return costs that nothing beats, over every order of all gangs, with and without preemption, on sound nodes."""
    every: set[CostRow] = set()
    limits = [None, *sorted({0.0, *state.failures_per_hour.values()})[:-1]]
    keys = [each.gang.key for each in state.waiting]
    for first, may_preempt, limit in product(permutations(keys), (True, False), limits):
        policy = replace(state.policy, first=first, may_preempt=may_preempt, max_failures_per_hour=limit)
        every.add(_rounded(costs_of(state, decide(replace(state, policy=policy), PLACE)).row))
    return {row for row in every if not _is_beaten(row, every)}


def rows_of(found: list[Choice]) -> set[CostRow]:
    """Return what choices cost, comparable with :func:`front_by_brute_force`."""
    return {_rounded(each.costs.row) for each in found}


def _rounded(row: CostRow) -> CostRow:
    return tuple(round(cost, 12) for cost in row)


def _is_beaten(one: CostRow, others: set[CostRow]) -> bool:
    return any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in others)
