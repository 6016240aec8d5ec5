"""What offload keeps in host memory and on local disks, and the seconds that moving it takes. Pure.

Axis: C = candidate layout. After ZeRO-Offload (Ren et al. 2021) and ZeRO-Infinity (Rajbhandari et al. 2021): the host
updates what it has the optimizer state of, disks are read and written through it, and every rank moves its own shard
at once with its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape, TierKind
from airflow_llmsched.domain.layout import Offload
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import OFFLOAD_ORDER, BoolArray, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, TransformerJob
from airflow_llmsched.planner.perf.memory_activations import LAYER_COLUMNS, StageActivations
from airflow_llmsched.planner.perf.memory_states import (
    STATE_COLUMNS,
    rank_parameters,
    sharded,
    sharded_state_bytes,
    state_away,
    trained_parameters,
)
from airflow_llmsched.planner.perf.stages import StageLayers, telling_stages

OFFLOAD_COLUMNS = tuple(dict.fromkeys((*STATE_COLUMNS, *LAYER_COLUMNS, "num_micro_batches_C")))
"""What offloaded bytes and their seconds depend on."""

NUM_GATHERS = 2
"""Times that offloaded weights are fetched for each micro-batch: for its forward and for its backward pass."""

_NVME = tuple(OFFLOAD_ORDER.index(each) for each in (Offload.OPTIMIZER_NVME, Offload.PARAMETERS_NVME))
_NONE = OFFLOAD_ORDER.index(Offload.NONE)


def offloaded_bytes(job: TransformerJob, table: LayoutTable) -> Mapping[TierKind, IntArray]:
    """Return bytes per rank outside the accelerator, of the stage that has most of them.

    Disks hold optimizer state and weights; gradients and activations stay in host memory.
    """
    found = factor(table, OFFLOAD_COLUMNS)
    host_C, disk_C = np.zeros(len(found.table), dtype=np.int64), np.zeros(len(found.table), dtype=np.int64)
    is_on_disk_C = np.isin(found.table.offload_C, _NVME)
    activations = StageActivations.of(job, found.table)
    for stage in telling_stages(job.model, found.table):
        away = _Away.of(job, found.table, stage)
        large_C = away.weight_bytes_C + away.optimizer_bytes_C
        small_C = away.gradient_bytes_C + activations.offloaded_C(stage)
        host_C = np.maximum(host_C, small_C + np.where(is_on_disk_C, 0, large_C))
        disk_C = np.maximum(disk_C, np.where(is_on_disk_C, large_C, 0))
    return {TierKind.HOST_DRAM: found.spread(host_C), TierKind.NVME: found.spread(disk_C)}


def has_room_outside(job: TransformerJob, table: LayoutTable, shape: NodeShape) -> BoolArray:
    """Tell of each candidate whether a node's host memory and disks hold what its ranks offload."""
    fits_C = np.ones(len(table), dtype=np.bool_)
    if not (table.offload_C != _NONE).any():
        return fits_C
    for kind, num_bytes_C in offloaded_bytes(job, table).items():
        tier = shape.memory_tiers.get(kind)
        fits_C &= num_bytes_C <= ((tier.num_bytes or 0) if tier else 0)
    return fits_C


def offload_terms_s(job: TransformerJob, table: LayoutTable, shape: NodeShape) -> dict[str, FloatArray]:
    """Return seconds of a step by term; the update never ends where the node has no room for what is offloaded.

    ``offload_traffic`` can run beside computation: gradients on their way out, weights and activations on their way out
    and back. ``offload_update`` comes after the last gradient and before the next step: the host's update, bound by its
    memory, what disks read and write for it, and updated weights on their way back.
    """
    if not (table.offload_C != _NONE).any():
        return {"offload_traffic": np.zeros(len(table)), "offload_update": np.zeros(len(table))}
    found = factor(table, OFFLOAD_COLUMNS)
    rates, activations = _Rates.of(shape), StageActivations.of(job, found.table)
    traffic_C, update_C = np.zeros(len(found.table)), np.zeros(len(found.table))
    for stage in telling_stages(job.model, found.table):
        away = _Away.of(job, found.table, stage)
        moved_C = found.table.num_micro_batches_C * activations.moved_C(stage)
        traffic_C = np.maximum(traffic_C, rates.traffic_s(away, found.table) + _seconds(moved_C, rates.link))
        update_C = np.maximum(update_C, rates.update_s(away, job, found.table))
    update_C = np.where(has_room_outside(job, found.table, shape), update_C, np.inf)
    return {"offload_traffic": found.spread(traffic_C), "offload_update": found.spread(update_C)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Away:
    """What one rank of a stage has outside the accelerator, and how many parameters it updates there."""

    weight_bytes_C: IntArray
    gradient_bytes_C: IntArray
    optimizer_bytes_C: IntArray
    num_updated_C: IntArray

    @classmethod
    def of(cls, job: TransformerJob, table: LayoutTable, stage: StageLayers) -> _Away:
        parameters = rank_parameters(job.model, table, stage)
        trained = trained_parameters(job, table, stage, parameters)
        local, away = sharded_state_bytes(job, table, parameters, trained), state_away(table)
        return cls(
            weight_bytes_C=np.where(away["weights"], local["weights"], 0),
            gradient_bytes_C=np.where(away["gradients"], local["gradients"], 0),
            optimizer_bytes_C=np.where(away["optimizer"], local["optimizer"], 0),
            num_updated_C=np.where(
                away["optimizer"], sharded(trained.dense_C, trained.expert_C, table, from_stage=1), 0
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Bytes per second of one rank when all ranks of its node move bytes at once; 0 where there is no such tier."""

    link: float
    host: float
    disk_read: float
    disk_write: float

    @classmethod
    def of(cls, shape: NodeShape) -> _Rates:
        host, disk = (shape.memory_tiers.get(kind) for kind in (TierKind.HOST_DRAM, TierKind.NVME))
        return cls(
            link=host.read_bytes_per_s if host else 0.0,
            host=shape.host.memory_bandwidth_bytes_per_s / shape.num_accelerators,
            disk_read=disk.read_bytes_per_s if disk else 0.0,
            disk_write=disk.write_bytes_per_s if disk else 0.0,
        )

    def traffic_s(self, away: _Away, table: LayoutTable) -> FloatArray:
        """Gradients out once; weights in for each pass, from disks through host memory where they are there."""
        fetched_C = NUM_GATHERS * table.num_micro_batches_C * away.weight_bytes_C
        from_disk_C = np.where(np.isin(table.offload_C, _NVME), fetched_C, 0)
        return _seconds(away.gradient_bytes_C + fetched_C, self.link) + _seconds(from_disk_C, self.disk_read)

    def update_s(self, away: _Away, job: TransformerJob, table: LayoutTable) -> FloatArray:
        """One pass of the host over gradients, state (read and written) and weights.

        Gradients that the accelerator still holds whole come over the link first, and weights that it keeps go back.
        """
        gradients_C = away.num_updated_C * FORMAT_BYTES[job.precision.gradients]
        weights_C = away.num_updated_C * FORMAT_BYTES[job.precision.parameters]
        linked_C = np.where(away.gradient_bytes_C > 0, 0, gradients_C) + np.where(away.weight_bytes_C > 0, 0, weights_C)
        is_on_disk_C = np.isin(table.offload_C, _NVME)
        return (
            _seconds(gradients_C + 2 * away.optimizer_bytes_C + weights_C, self.host)
            + _seconds(linked_C, self.link)
            + _seconds(np.where(is_on_disk_C, away.optimizer_bytes_C, 0), self.disk_read)
            + _seconds(np.where(is_on_disk_C, away.optimizer_bytes_C + away.weight_bytes_C, 0), self.disk_write)
        )


def _seconds(num_bytes_C: IntArray | FloatArray, bytes_per_s: float) -> FloatArray:
    if bytes_per_s > 0:
        return np.asarray(num_bytes_C / bytes_per_s)
    return np.where(num_bytes_C > 0, np.inf, 0.0)
