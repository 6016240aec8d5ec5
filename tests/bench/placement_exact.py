"""Rows of ``make bench-placement`` on what is best: how far heuristics stay behind it, and fronts against brute force.

Heuristics and the exact solver value the same score. What is compared with is the bound that CP-SAT proves, over ways
to lie that are enumerated by other code than theirs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts, NotPlaced, PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.front import placement_front
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.ports import PlacementSolver
from airflow_llmsched.solvers.cpsat import ExactSolver
from tests.bench.rows import Row
from tests.support.every_placement import costs_of, front_by_trying_all, small_problem
from tests.support.fleets import workload
from tests.support.models import LLAMA2_7B

MAX_NODES = 64
SHAPE = "p5.48xlarge"
SLOTS = 8
TOLD_RATIO = 0.25
"""Share of instances of a known job, whose step is predicted; the step of the others is nominal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """How much more than the optimum placements cost, by instance; and how many optima are proven, to 0.01%."""

    ratio_I: FloatArray
    num_proven: int
    num_refused: int

    def mean_ratio(self) -> float:
        return float(self.ratio_I.mean())

    def worst_ratio(self) -> float:
        return float(self.ratio_I.max())

    @property
    def proven_ratio(self) -> float:
        return self.num_proven / len(self.ratio_I)


def gaps(solvers: Sequence[PlacementSolver], *, num_instances: int, seed: int, time_limit_s: float) -> list[Gaps]:
    """Place the same random gangs with each solver and exactly. A gang that only one of them refuses is an error.

    Costs are compared with the bound where the optimum is not proven in time: never too kindly.
    """
    exact = ExactSolver()
    ratios: list[list[float]] = [[] for _ in solvers]
    num_proven = num_refused = 0
    for problem in instances(num_instances=num_instances, seed=seed):
        best = exact.place(problem, time_limit_s=time_limit_s, seed=0)
        results = [solver.place(problem, time_limit_s=time_limit_s, seed=0) for solver in solvers]
        if isinstance(best, NotPlaced):
            num_refused += 1
            assert all(isinstance(each, NotPlaced) for each in results), problem
            continue
        assert best.bound_s is not None
        assert best.gap_ratio is not None
        num_proven += best.gap_ratio < 1e-4
        scorer = Scorer(problem)
        for found, result in zip(ratios, results, strict=True):
            assert not isinstance(result, NotPlaced), problem
            found.append(max(0.0, scorer.score(result.placement).total_s / best.bound_s - 1))
    return [Gaps(ratio_I=np.array(each), num_proven=num_proven, num_refused=num_refused) for each in ratios]


def rows(
    solvers: Mapping[str, PlacementSolver],
    *,
    default: str,
    num_instances: int = 500,
    num_fronts: int = 200,
    seed: int = 6,
) -> list[Row]:
    """Return the rows, with bars for the ``default`` solver and the others beside it."""
    found = dict(
        zip(
            solvers,
            gaps(list(solvers.values()), num_instances=num_instances, seed=seed, time_limit_s=20.0),
            strict=True,
        )
    )
    others = [name for name in solvers if name != default]
    mean, worst = ({name: 100 * of(found[name]) for name in solvers} for of in (Gaps.mean_ratio, Gaps.worst_ratio))
    return [
        Row(
            name=f"above the optimum on {num_instances} random fleets of up to {MAX_NODES} nodes, mean ({default})",
            value=mean[default], unit="%", below=1.0, reference={name: mean[name] for name in others},
        ),
        Row(
            name=f"the same, worst ({default})",
            value=worst[default], unit="%", below=5.0, reference={name: worst[name] for name in others},
        ),
        Row(name="optima among these that are proven to 0.01%", value=100 * found[default].proven_ratio, unit="%"),
        Row(
            name=f"fronts over five objectives, of {num_fronts}, that differ from brute force",
            value=float(num_fronts_that_differ(num_fronts=num_fronts, seed=seed)), below=1.0,
        ),
    ]  # fmt: skip


def num_fronts_that_differ(*, num_fronts: int, seed: int) -> int:
    """Count small fleets on which the front of placements is not the one that trying all placements finds."""
    chance = random.Random(seed)
    return sum(not _is_the_same_front(small_problem(chance)) for _ in range(num_fronts))


def _is_the_same_front(problem: PlacementProblem) -> bool:
    expected, found = front_by_trying_all(problem), placement_front(problem)
    return (set() if isinstance(found, NotPlaced) else costs_of(found)) == expected


def instances(*, num_instances: int, seed: int) -> Iterator[PlacementProblem]:
    """Yield gangs on fleets of 4 to 64 nodes of eight: racks of uneven size, some nodes busy in part, full or drained.

    Half have prices and failures by node, a quarter a known job, a third a preferred level and some a required one.
    """
    rng = np.random.default_rng(seed)
    for _ in range(num_instances):
        yield _instance(rng)


def _instance(rng: np.random.Generator) -> PlacementProblem:
    tree = _tree(rng)
    layout = _layout(rng, num_ranks=int(tree.num_usable_slots * rng.choice([0.1, 0.25, 0.5, 0.8])))
    problem = PlacementProblem(
        layout=layout,
        tree=tree,
        preferred_level=rng.choice([None, None, "rack", "block"]),
        required_level=rng.choice([None, None, None, None, "rack", "block"]),
        weights=ObjectiveWeights(
            cost=rng.choice([0.0, 0.0, 1.0]), fairness=rng.choice([0.0, 0.0, 1.0]),
            reliability=rng.choice([0.0, 0.0, 1.0]),
        ),
        node_costs=_node_costs(rng, tree) if rng.random() < 0.5 else {},
    )  # fmt: skip
    if rng.random() >= TOLD_RATIO:
        return problem
    job = workload(LLAMA2_7B, num_sequences=layout.dp * layout.num_micro_batches)
    return replace(problem, workload=job, shape=node_shape(SHAPE))


def _tree(rng: np.random.Generator) -> TopologyTree:
    num_nodes = int(rng.integers(4, MAX_NODES + 1))
    racks_per_block = int(rng.integers(2, 5))
    rack_N = np.sort(rng.integers(0, max(2, num_nodes // int(rng.choice([4, 8, 12]))), size=num_nodes))
    free_N = np.where(rng.random(num_nodes) < 0.7, SLOTS, rng.choice([0, 2, 4, 6], size=num_nodes))
    return TopologyTree(
        levels=("block", "rack"),
        nodes=tuple(
            TopologyNode(
                id=NodeId(f"n{number:02d}"),
                path=(f"b{rack // racks_per_block}", f"r{rack:02d}"),
                shape=SHAPE,
                num_slots=SLOTS,
                num_free_slots=free,
                unusable_reason="drained" if rng.random() < 0.05 else None,
            )
            for number, (rack, free) in enumerate(zip(rack_N.tolist(), free_N.tolist(), strict=True))
        ),
    )


def _layout(rng: np.random.Generator, *, num_ranks: int) -> ParallelLayout:
    tp, pp, cp = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 1, 2, 4])), int(rng.choice([1, 1, 1, 2]))
    dp = max(1, num_ranks // (tp * pp * cp))
    if rng.random() < 0.7 and dp > 1:
        dp = 2 ** int(np.log2(dp))
    return ParallelLayout(dp=dp, tp=tp, pp=pp, cp=cp, zero_stage=int(dp > 1), num_micro_batches=2 * pp)


def _node_costs(rng: np.random.Generator, tree: TopologyTree) -> dict[NodeId, NodeCosts]:
    return {
        node.id: NodeCosts(
            usd_per_hour=float(rng.choice([88.0, 98.0, 120.0])),
            failures_per_hour=float(rng.choice([1e-4, 3e-4, 3e-3])),
            missing_data_bytes=int(rng.choice([0, 10**11])),
        )
        for node in tree.nodes
    }
