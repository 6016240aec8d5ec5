"""Queues for tests: builders that hide what does not matter."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.queue import (
    Limits,
    PriorityClass,
    QueuedGang,
    QueuePolicy,
    QueueState,
    RunningGang,
    TeamQuota,
    WaitingGang,
)
from airflow_llmsched.domain.queue_decision import QueueDecision, WaitReason
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.wishes import stride_and_size
from airflow_llmsched.planner.queue.decide import decide, placing_by

CLASSES = (
    PriorityClass(name="urgent", priority=100),
    PriorityClass(name="normal", priority=50),
    PriorityClass(name="low", priority=0),
)
PLACE = placing_by(BestFitSolver())


def racks(num_racks: int, *, nodes: int = 2, slots: int = 4, blocks: int = 1) -> TopologyTree:
    """Return free nodes ``r0n0`` ... in racks, the racks dealt out to blocks in rows."""
    per_block = -(-num_racks // blocks)
    return TopologyTree(
        levels=("block", "rack"),
        nodes=tuple(
            TopologyNode(
                id=NodeId(f"r{rack}n{number}"),
                path=(f"b{rack // per_block}", f"r{rack}"),
                shape="gpu",
                num_slots=slots,
                num_free_slots=slots,
            )
            for rack in range(num_racks)
            for number in range(nodes)
        ),
    )


def gang(key: str, size: int = 4, *, tp: int = 1, team: str = "red", cls: str = "normal", **others: Any) -> QueuedGang:
    return QueuedGang(
        key=RunKey(key), team=team, priority_class=cls, layout=ParallelLayout(dp=size // tp, tp=tp), **others
    )


def drawn_groups(rng: random.Random, key: str, **others: Any) -> QueuedGang:
    """Return a gang of up to 32 ranks whose groups must stay inside racks, blocks or nodes."""
    while True:
        layout = ParallelLayout(
            dp=rng.randint(1, 4), tp=rng.choice([1, 1, 2]), pp=rng.choice([1, 2, 3]), cp=rng.choice([1, 1, 2])
        )
        groups = [each for each in RankGroup if each is not RankGroup.GANG and stride_and_size(layout, each)[1] > 1]
        if groups:
            break
    wishes = tuple(
        PlacementWish(group=each, level=rng.choice(["rack", "rack", "block", "node"]), required=True)
        for each in rng.sample(groups, rng.randint(1, min(2, len(groups))))
    )
    asked = gang(key, group_levels=wishes, num_helper_slots=rng.choice([0, 0, 1]), **others)
    return replace(asked, layout=layout)


def waits(asked: QueuedGang, *, since: float = 0.0, runs: float | None = 100.0, **others: Any) -> WaitingGang:
    return WaitingGang(gang=asked, since_s=since, runs_for_s=runs, **others)


def runs_on(
    asked: QueuedGang, held: dict[str, int], *, ends: float | None = 1000.0, started: float = -100.0,
    saved: float = 0.0, first: int = 0, **others: Any,
) -> RunningGang:  # fmt: skip
    """Return a gang on the slots of each node that begin with ``first``."""
    return RunningGang(
        gang=asked,
        held={NodeId(node): tuple(range(first, first + count)) for node, count in held.items()},
        started_s=started,
        saved_s=saved,
        ends_by_s=ends,
        **others,
    )


def quota(team: str, nominal: float, **others: Any) -> TeamQuota:
    return TeamQuota(team=team, nominal=Limits(num_accelerators=nominal), **others)


def state_of(
    tree: TopologyTree, *gangs: WaitingGang | RunningGang, policy: dict[str, Any] | None = None, **others: Any
) -> QueueState:
    return QueueState(
        now_s=others.pop("now_s", 0.0),
        tree=tree,
        classes=others.pop("classes", CLASSES),
        waiting=tuple(each for each in gangs if isinstance(each, WaitingGang)),
        running=tuple(each for each in gangs if isinstance(each, RunningGang)),
        policy=QueuePolicy(**(policy or {})),
        **others,
    )


def decided(tree: TopologyTree, *gangs: WaitingGang | RunningGang, **others: Any) -> QueueDecision:
    return decide(state_of(tree, *gangs, **others), PLACE)


def started(decision: QueueDecision) -> dict[str, dict[str, int]]:
    """Return the slots that each started gang holds of each node."""
    return {each.gang: {node: len(slots) for node, slots in each.held.items()} for each in decision.starts}


def reasons(decision: QueueDecision) -> dict[str, WaitReason]:
    return {each.gang: each.reason for each in decision.waits}


def start_s(decision: QueueDecision) -> dict[str, float | None]:
    return {each.gang: each.start_s for each in decision.waits}


def crowd(seed: int, *, num_waiting: int = 1000, num_running: int = 1000) -> QueueState:
    """Return 2,048 nodes of 8 slots, nearly full of gangs of 16 teams in 3 cohorts, and as many that wait."""
    rng = random.Random(seed)
    tree = racks(128, nodes=16, slots=8, blocks=8)
    teams = [f"t{number}" for number in range(16)]
    names = [node.id for node in tree.nodes]
    running: list[RunningGang] = []
    first = 0
    for number in range(num_running):
        size = rng.choice([4, 8, 8, 8, 16, 16, 16, 32])
        whole = range(first, first + size // 8)
        held = {names[node]: tuple(range(8)) for node in whole} or {names[first]: tuple(range(4))}
        first += len(held)
        asked = gang(f"r{number}", size, team=rng.choice(teams), cls=rng.choice(["low", "normal", "urgent"]))
        ends_by_s = rng.random() * 1e5 if rng.random() < 0.9 else None
        saved_s = -rng.random() * 3600
        running.append(
            RunningGang(
                gang=asked, held=held, started_s=-1e5, saved_s=saved_s, ends_by_s=ends_by_s, restart_s=300.0,
                next_save_s=-saved_s,
            )
        )  # fmt: skip
    waiting = [
        waits(
            gang(
                f"w{number}", rng.choice([8, 8, 16, 32, 64, 128, 256]), tp=rng.choice([1, 8]), team=rng.choice(teams),
                cls=rng.choice(["low", "normal", "normal", "urgent"]),
                required_level=rng.choice([None, None, "block", "rack"]),
            ),
            since=-rng.random() * 8e4,
            runs=rng.random() * 1e5 if rng.random() < 0.9 else None,
        )
        for number in range(num_waiting)
    ]  # fmt: skip
    quotas = tuple(quota(team, 1024, cohort=f"c{number % 3}") for number, team in enumerate(teams))
    return state_of(tree, *running, *waiting, quotas=quotas)
