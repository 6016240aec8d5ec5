"""Topologies and workloads for planner tests: builders that hide what does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape, NumberFormat
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import (
    BatchPhase,
    BudgetSpec,
    DatasetKind,
    DatasetSpec,
    LauncherSpec,
    ModelShape,
    OptimizerSpec,
    PrecisionSpec,
    TrainingStage,
    WorkloadSpec,
)
from airflow_llmsched.planner.evaluate import evaluate
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from tests.support.models import LLAMA2_7B

FULL_PRECISION = PrecisionSpec(compute=NumberFormat.FP32, parameters=NumberFormat.FP32, gradients=NumberFormat.FP32)
TINY = replace(
    LLAMA2_7B, name="tiny", num_layers=4, hidden_size=192, num_heads=6, num_kv_heads=6, head_size=32,
    ffn_hidden_size=512, vocab_size=256,
)  # fmt: skip


def node(
    name: str, *, path: tuple[str, ...] = ("b0", "r0"), free: int = 8, slots: int = 8, shape: str = "p5.48xlarge",
    unusable: str | None = None,
) -> TopologyNode:  # fmt: skip
    return TopologyNode(
        id=NodeId(name), path=path, shape=shape, num_slots=slots, num_free_slots=free, unusable_reason=unusable
    )


def tree_of(*nodes: TopologyNode, levels: tuple[str, ...] = ("block", "rack")) -> TopologyTree:
    return TopologyTree(levels=levels, nodes=nodes)


def fleet(
    num_nodes: int, *, slots: int = 8, shape: str = "p5.48xlarge", nodes_per_rack: int = 4, racks_per_block: int = 2
) -> TopologyTree:
    """Return free nodes in racks, racks in blocks."""
    return tree_of(
        *(
            node(
                f"n{number:04d}",
                path=(f"b{number // nodes_per_rack // racks_per_block:02d}", f"r{number // nodes_per_rack:03d}"),
                free=slots, slots=slots, shape=shape,
            )
            for number in range(num_nodes)
        )
    )  # fmt: skip


def workload(
    model: ModelShape | None = LLAMA2_7B, *, sequence_length_tokens: int = 4096, num_sequences: int = 256, **others: Any
) -> WorkloadSpec:
    """Return a run with a trainer of the user's own, so that every kind of parallelism is open."""
    values: dict[str, Any] = {
        "name": "run",
        "stage": TrainingStage.PRETRAIN,
        "model": model,
        "data": DatasetSpec(kind=DatasetKind.FILES, source="/data"),
        "batch": (
            BatchPhase(from_tokens=0, sequence_length_tokens=sequence_length_tokens, num_sequences=num_sequences),
        ),
        "budget": BudgetSpec(num_steps=10),
        "launcher": LauncherSpec(command=("python", "train.py")),
    }
    return WorkloadSpec(**(values | others))


def with_busy_links(tree: TopologyTree, busy: Mapping[tuple[str, ...], float]) -> TopologyTree:
    """Return the tree with links above some domains busy for a share of the time; a domain is its path."""

    def ratios(each: TopologyNode) -> tuple[float, ...]:
        parts = (*each.path, each.id)
        return tuple(busy.get(parts[: depth + 1], 0.0) for depth in range(len(parts)))

    nodes = (replace(each, busy_ratios=ratios(each) if any(ratios(each)) else ()) for each in tree.nodes)
    return replace(tree, nodes=tuple(nodes))


def local_workload(**others: Any) -> WorkloadSpec:
    """Return a small run of the shipped trainer in full precision, as on the local engine."""
    values = {"launcher": LauncherSpec(), "precision": FULL_PRECISION}
    return workload(TINY, sequence_length_tokens=256, num_sequences=32, **(values | others))


def job(
    model: ModelShape = LLAMA2_7B, *, sequence_length_tokens: int = 4096, num_sequences: int = 256, **others: Any
) -> TransformerJob:
    values: dict[str, Any] = {"optimizer": OptimizerSpec(), "precision": PrecisionSpec()}
    return TransformerJob(
        model=model,
        sequence_length_tokens=sequence_length_tokens,
        num_sequences=num_sequences,
        **(values | others),
    )


def plan_of(run: WorkloadSpec, layout: ParallelLayout, shape: NodeShape) -> Plan:
    """Return the plan of a layout on full nodes of eight, with what is predicted for it there."""
    slots = tuple(
        RankSlot(rank=rank, node=NodeId(f"n{rank // 8}"), slot=rank % 8, local_rank=rank % 8)
        for rank in range(layout.world_size)
    )
    return Plan(
        layout=layout,
        placement=Placement(slots=slots),
        prediction=evaluate(run, LayoutTable.of([layout]), full_nodes(shape, layout)).prediction(0, usd_per_hour=9.0),
        node_shape=shape.name,
        num_domains=1,
    )


def full_nodes(shape: NodeShape, layout: ParallelLayout) -> Machine:
    """Return the machine of a plan of :func:`plan_of`."""
    return Machine(shape=shape, ranks_per_node_C=np.array([min(8, layout.world_size)]))


def machine_of(plan: Plan, tree: TopologyTree, shape: NodeShape) -> PlacedMachine:
    """Return the machine that a search priced ``plan`` on."""
    return PlacedMachine.on(plan.placement, tree=tree, shape=shape)


def gang(num_ranks: int, *, tp: int = 1) -> ParallelLayout:
    return ParallelLayout(dp=num_ranks // tp, tp=tp)
