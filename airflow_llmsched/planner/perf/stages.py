"""How a model's layers fall to pipeline stages, and how many micro-batches each stage holds at once. Pure.

Axes: C = candidate layout, K = layer kind (``layers.distinct_kinds``), L = layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from airflow_llmsched.domain.layout import PipelineSchedule
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import SCHEDULE_ORDER, BoolArray, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.layers import distinct_kinds, layer_kinds

INTERLEAVED = SCHEDULE_ORDER.index(PipelineSchedule.INTERLEAVED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLayers:
    """One pipeline stage of each candidate.

    ``num_KC`` counts its layers of each kind, all its chunks together.
    """

    stage_C: IntArray
    num_KC: IntArray
    is_first_C: BoolArray
    is_last_C: BoolArray

    @property
    def num_layers_C(self) -> IntArray:
        """Layers of all kinds."""
        return np.asarray(self.num_KC.sum(axis=0))


def telling_stages(model: ModelShape, table: LayoutTable) -> Iterator[StageLayers]:
    """Yield, for each candidate, the stages among which the heaviest must be. Reads ``pp_C`` and ``vp_C`` alone.

    In-flight micro-batches fall from first to last, so a stage is no heavier than an earlier one that has as many
    layers of each kind. That leaves those that no earlier one outdoes, and the last, which has the output head.
    """
    found = factor(table, ("pp_C", "vp_C"))
    pairs = zip(found.table.pp_C.tolist(), found.table.vp_C.tolist(), strict=True)
    split = [_stages_of(model, pp, vp) for pp, vp in pairs]
    counts, told = [num_SK for num_SK, _ in split], [stages for _, stages in split]
    for number in range(max((len(each) for each in told), default=0)):
        chosen = [each[min(number, len(each) - 1)] for each in told]
        stage_C = found.spread(np.array(chosen, dtype=np.int64))
        num_KU = np.array([num_SK[stage] for num_SK, stage in zip(counts, chosen, strict=True)], dtype=np.int64).T
        yield StageLayers(
            stage_C=stage_C,
            num_KC=found.spread(num_KU),
            is_first_C=stage_C == 0,
            is_last_C=stage_C == table.pp_C - 1,
        )


def every_stage(model: ModelShape, *, pp: int, vp: int) -> Iterator[StageLayers]:
    """Yield all stages of one candidate, first to last."""
    for stage, num_K in enumerate(_num_SK(model, pp=pp, vp=vp)):
        yield StageLayers(
            stage_C=np.array([stage]),
            num_KC=num_K[:, None],
            is_first_C=np.array([stage == 0]),
            is_last_C=np.array([stage == pp - 1]),
        )


def stage_bounds(num_layers: int, *, num_chunks: int) -> IntArray:
    """Return where each chunk of consecutive layers begins, and the end of the last: ``num_chunks + 1`` numbers.

    Chunks are as even as can be. What is missing to a full row is taken from the last and the first ones, which have
    the output head and the embedding besides (as for Llama 3.1 405B: 126 layers over 16 stages, Dubey et al. 2024,
    section 3.3.2).
    """
    per_chunk = -(-num_layers // num_chunks)
    num_missing = per_chunk * num_chunks - num_layers
    num_front = num_missing // 2
    chunk = np.arange(num_chunks + 1, dtype=np.int64)
    num_short_after = np.maximum(0, chunk - (num_chunks - (num_missing - num_front)))
    return np.asarray(chunk * per_chunk - np.minimum(chunk, num_front) - num_short_after)


def num_in_flight_C(table: LayoutTable, stage_C: IntArray) -> FloatArray:
    """Return of how many micro-batches a stage holds activations at most; a fraction where it has several chunks.

    1F1B: pp - i (Narayanan et al. 2019), which ZB-H1 keeps. Interleaved: 2 (pp - i - 1) + (vp - 1) pp + 1 chunks, each
    1/vp of the stage (Narayanan et al. 2021; Korthikanti et al. 2022, section 4.2.3). Never more than there are.
    """
    plain_C = table.pp_C - stage_C
    chunks_C = 2 * (plain_C - 1) + (table.vp_C - 1) * table.pp_C + 1
    held_C = np.where(table.vp_C > 1, chunks_C / table.vp_C, plain_C)
    return np.minimum(held_C, table.num_micro_batches_C).astype(np.float64)


@lru_cache(maxsize=4096)
def _stages_of(model: ModelShape, pp: int, vp: int) -> tuple[IntArray, Sequence[int]]:
    """Count layers by stage (S) and kind, and name the stages that tell. The same few splits are asked for again."""
    num_SK = _num_SK(model, pp=pp, vp=vp)
    num_SK.setflags(write=False)
    return num_SK, _telling(num_SK)


def _num_SK(model: ModelShape, *, pp: int, vp: int) -> IntArray:
    """Count layers by stage (S) and kind. Stage i has the chunks i, i + pp, i + 2 pp and so on."""
    kinds = distinct_kinds(model)
    kind_L = np.array([kinds.index(kind) for kind in layer_kinds(model)], dtype=np.int64)
    bounds = stage_bounds(model.num_layers, num_chunks=pp * vp)
    chunk_L = np.searchsorted(bounds, np.arange(model.num_layers), side="right") - 1
    num_SK = np.zeros((pp, len(kinds)), dtype=np.int64)
    np.add.at(num_SK, (chunk_L % pp, kind_L), 1)
    return num_SK


def _telling(num_SK: IntArray) -> list[int]:
    told: list[int] = []
    for stage, num_K in enumerate(num_SK):
        if not any((num_SK[earlier] >= num_K).all() for earlier in told):
            told.append(stage)
    return sorted({*told, len(num_SK) - 1})
