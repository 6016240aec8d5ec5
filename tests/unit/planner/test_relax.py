"""What a refused search says would help, case by case, through the search that fills the tally."""

from __future__ import annotations

import re

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import (
    CapacityWish,
    LauncherSpec,
    MemoryDemand,
    ParallelismWish,
    PrecisionSpec,
    WorkloadSpec,
)
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.relax import Obstacles, relaxation
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, local_workload, node, tree_of, workload
from tests.support.models import GPT2, LLAMA2_70B, LLAMA31_8B

LOCAL = fleet(2, slots=2, shape="local-cpu")


def capacity(least: int, most: int | None = None) -> CapacityWish:
    return CapacityWish(min_ranks=least, max_ranks=most)


GROUP_WISH = (PlacementWish(group=RankGroup.DP, level="node", required=True),)
GANG_WISH = (PlacementWish(group=RankGroup.GANG, level="node", required=True),)
FP8 = PrecisionSpec(compute=NumberFormat.FP8)
EVALUATOR = (RoleSpec(kind=RoleKind.EVALUATOR, num_ranks=2),)


@pytest.mark.parametrize(
    ("run", "tree", "advice"),
    [
        (local_workload(capacity=capacity(8)), LOCAL, "4 slots are usable, 8 are needed"),
        (local_workload(capacity=capacity(4), roles=EVALUATOR), LOCAL, "2 slots are usable besides 2 for other roles"),
        (local_workload(capacity=capacity(3, 3)), LOCAL, "do not divide over 3 ranks; they do over 2 or 4"),
        (local_workload(parallelism=ParallelismWish(dp=3)), LOCAL, r"unpin parallelism\.dp = 3"),
        (local_workload(parallelism=ParallelismWish(tp=2)), LOCAL, r"unpin parallelism\.tp = 2: 4 ranks then"),
        (
            local_workload(),
            fleet(1, shape="mystery"),
            "say what kind of node mystery is: `llmsched hardware` lists those known",
        ),
        (local_workload(), tree_of(node("n", unusable="drained")), "0 slots are usable, 1 are needed"),
        (workload(LLAMA31_8B, precision=FP8), fleet(1, shape="p4de.24xlarge"), "precision.compute.*bf16"),
        (
            workload(LLAMA31_8B, capacity=capacity(16), placement=GANG_WISH),
            fleet(2),
            "8 fit in one node: allow level .rack. instead",
        ),
        (workload(LLAMA2_70B, capacity=capacity(1, 2)), fleet(1), r"the leanest legal layout needs \d+\.\d GiB"),
        (
            workload(LLAMA2_70B, capacity=capacity(16, 16), launcher=LauncherSpec()),
            fleet(2),
            r"more memory\. The shipped trainer keeps the model whole: [\d,]+ layouts that split it need a trainer",
        ),
        (
            workload(None, memory=(MemoryDemand(tier="host", bytes_per_rank=300 * 2**30),)),
            tree_of(node("n", slots=8), node("a", shape="p4d.24xlarge")),
            r"a rank states 300\.0 GiB of host .* share of a p5\.48xlarge is 256\.0 GiB: state less",
        ),
        (
            workload(LLAMA31_8B, capacity=capacity(16), placement=GROUP_WISH, parallelism=ParallelismWish(dp=16)),
            fleet(2),
            "allow level 'rack' instead of 'node' for dp groups",
        ),
    ],
)
def test_a_refusal_says_what_would_help(run: WorkloadSpec, tree: TopologyTree, advice: str) -> None:
    found = search(run, tree, node_shapes(), solver=BestFitSolver())
    assert not found.plans
    assert found.relaxation is not None
    assert re.search(advice, found.relaxation), found.relaxation


def test_the_nearest_rank_counts_with_a_legal_layout_are_named() -> None:
    run = workload(GPT2, capacity=capacity(72, 72), sequence_length_tokens=1024, num_sequences=512)
    found = search(run, fleet(18, slots=4, shape="gb200-nvl72"), node_shapes(), solver=BestFitSolver())
    assert "no layout is legal on 72 ranks" in (found.relaxation or "")
    assert re.search(r"; on 64 or \d+ one is$", found.relaxation or ""), found.relaxation


def test_without_pins_the_commonest_rule_is_named() -> None:
    obstacles = Obstacles(workload=local_workload(), tried_counts=(3,))
    obstacles.turn_down("rule a", 1)
    obstacles.turn_down("rule b", 2)
    obstacles.turn_down("rule c", 0)
    assert relaxation(obstacles) == "no layout is legal on 3 ranks, mostly because rule b; on 2 or 4 one is"
    assert obstacles.rejections() == {"rule b": 2, "rule a": 1}


def test_the_closest_miss_of_memory_is_remembered() -> None:
    obstacles = Obstacles(workload=local_workload())
    large, small = (node_shapes()[name].accelerator for name in ("p5.48xlarge", "p4d.24xlarge"))
    obstacles.note_memory(200 * 2**30, small)
    obstacles.note_memory(90 * 2**30, large)
    obstacles.note_memory(190 * 2**30, small)
    assert "needs 90.0 GiB on each h100-sxm" in (relaxation(obstacles) or "")
