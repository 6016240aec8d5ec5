"""One gang of several kinds of accelerators: who computes how much, so that none waits long for another. Pure.

Two ways are tried. *Uneven replicas*: each replica is of one kind, and the slower kinds get fewer micro-batches of a
step. *Uneven stages*: each pipeline runs through all kinds, and the slower ones get fewer layers. Shares are exact
(``uneven``). Axes: C = candidate layout, K = kind of machine, P = replica or stage.

Not modelled: links between kinds (the slowest kind's network is taken for all), chunks, experts, split sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import permutations, product
from typing import TypeVar

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.workload import ParallelismWish, WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.evaluate import usable_bytes
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.job import TransformerJob, job_of
from airflow_llmsched.planner.perf.layers import distinct_kinds
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import memory_totals
from airflow_llmsched.planner.perf.micro_batch import slowest_micro_batch
from airflow_llmsched.planner.perf.stages import stage_bounds
from airflow_llmsched.planner.perf.step import step_terms
from airflow_llmsched.planner.uneven import Parts, pipeline_s, split_replicas, split_stages

T = TypeVar("T")

RECOMPUTED = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
REPLICA_ZERO_STAGES = (0, 1, 3)
PIPELINE_ZERO_STAGES = (0, 1)
_ONLY: Mapping[str, Sequence[object]] = {
    "cp": (1,), "ep": (1,), "expert_tp": (), "vp": (1,), "shard_size": (), "recompute": RECOMPUTED,
    "schedule": (PipelineSchedule.ONE_F_ONE_B,), "offload": (Offload.NONE,),
}  # fmt: skip
"""Pins of which only these values can be kept, as no other is tried."""

_IN_PASSES = frozenset({
    "matmul", "attention", "elementwise", "recompute", "launch", "tensor_parallel", "pipeline_bubble",
})  # fmt: skip


class Unevenness(StrEnum):
    """What differs between kinds."""

    REPLICAS = "replicas"
    STAGES = "stages"


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeNodes:
    """Whole nodes of one shape."""

    shape: NodeShape
    num_nodes: int
    calibration: Calibration | None = None

    @property
    def num_ranks(self) -> int:
        """Accelerators of all of them."""
        return self.num_nodes * self.shape.num_accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one kind does: micro-batches of each of its replicas, or layers of each of its stages, in order."""

    node_shape: str
    num_ranks: int
    amounts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """One way to train on all kinds at once. ``even_step_s`` is what a step takes if all get the same.

    ``layout`` has all replicas or all stages, and the most micro-batches that any replica gets.
    """

    by: Unevenness
    layout: ParallelLayout
    shares: tuple[Share, ...]
    step_s: float
    even_step_s: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSearch:
    """The best of each way, fastest first, and the seconds of a step on each kind alone (None: it cannot)."""

    plans: tuple[MixedPlan, ...]
    alone_s: tuple[tuple[str, float | None], ...]


def plan_mixed(workload: WorkloadSpec, kinds: Sequence[LikeNodes]) -> MixedSearch:
    """Plan one gang over all nodes of all kinds, in the heaviest batch phase.

    Of a pinned degree no other value is tried; of each kind alone, dp is what its ranks come to.

    Raises:
        SpecError: a pin asks for what is not tried here, or the kinds have more or fewer ranks than the gang may have.
        ValueError: the workload has no model.
        KeyError: a kind lacks the number format.
    """
    job = job_of(workload)
    if job is None:
        raise ValueError("what a job without a model computes is not known, and cannot be shared out")
    _check_wishes(workload, kinds)
    wish = workload.parallelism
    ways = (_by_replicas(job, kinds, wish), _by_stages(job, kinds, wish))
    alone = ((kind.shape.name, _by_replicas(job, [kind], replace(wish, dp=None))) for kind in kinds)
    return MixedSearch(
        plans=tuple(sorted((plan for plan in ways if plan), key=lambda plan: plan.step_s)),
        alone_s=tuple((name, plan.step_s if plan else None) for name, plan in alone),
    )


def explain_mixed(found: MixedSearch) -> str:
    """Return what was chosen, why, and what it was chosen over."""
    if not found.plans:
        return "No plan: no layout that the spec allows fits all kinds at once."
    best = found.plans[0]
    items = "micro-batches a replica" if best.by is Unevenness.REPLICAS else "layers a stage"
    lines = [f"Chosen: uneven {best.by}, {best.layout.describe()}: {best.step_s:.3g} s a step."]
    lines += [f"  {each.node_shape}: {each.num_ranks} ranks, {_listed(each.amounts)} {items}." for each in best.shares]
    lines.append(f"With equal shares a step would take {best.even_step_s:.3g} s: the slower kind would be waited for.")
    for name, alone_s in found.alone_s:
        lines.append(f"{name} alone: " + ("it does not fit." if alone_s is None else f"{alone_s:.3g} s a step."))
    lines += [f"Uneven {each.by} instead: {each.step_s:.3g} s a step." for each in found.plans[1:]]
    return "\n".join(lines)


def _listed(amounts: Sequence[int]) -> str:
    fewest, most = min(amounts), max(amounts)
    return str(most) if fewest == most else f"{fewest} to {most}"


def _check_wishes(workload: WorkloadSpec, kinds: Sequence[LikeNodes]) -> None:
    for name, allowed in _ONLY.items():
        value = getattr(workload.parallelism, name)
        if value is not None and value not in allowed:
            hint = "is not tried for a gang of several kinds of machines: leave it out, or plan on one kind"
            raise SpecError(path=f"parallelism.{name}", value=value, hint=hint)
    num_ranks, wish = sum(kind.num_ranks for kind in kinds), workload.capacity
    hint = f"a gang of several kinds of machines has a rank on each of their {num_ranks} accelerators"
    if num_ranks < wish.min_ranks:
        raise SpecError(path="capacity.min_ranks", value=wish.min_ranks, hint=hint)
    if wish.max_ranks is not None and num_ranks > wish.max_ranks:
        raise SpecError(path="capacity.max_ranks", value=wish.max_ranks, hint=hint)


def _by_replicas(job: TransformerJob, kinds: Sequence[LikeNodes], wish: ParallelismWish) -> MixedPlan | None:
    layouts = [
        layout
        for layout in _replica_layouts(job, kinds, wish)
        if job.num_sequences // layout.micro_batch_size >= layout.dp
    ]
    layouts = _that_fit(job, layouts, kinds)
    if not layouts:
        return None
    each_KC, fixed_KC = _linear_KC(job, layouts, kinds)
    num_KC = np.array([[kind.num_ranks // (layout.tp * layout.pp) for layout in layouts] for kind in kinds])
    items_C = np.array([job.num_sequences // layout.micro_batch_size for layout in layouts])
    # with shares that need not be whole all replicas would be done at once: no whole ones can be faster
    least_C = (items_C + (num_KC * fixed_KC / each_KC).sum(axis=0)) / (num_KC / each_KC).sum(axis=0)
    best_s, best = np.inf, None
    for index in np.argsort(least_C, kind="stable"):
        if least_C[index] >= best_s:
            break
        num_K = num_KC[:, index]
        ones_P = np.ones(num_K.sum(), dtype=np.int64)
        parts = Parts(
            each_s_P=np.repeat(each_KC[:, index], num_K), fixed_s_P=np.repeat(fixed_KC[:, index], num_K),
            least_P=ones_P, most_P=ones_P * items_C[index],
        )  # fmt: skip
        shares_P = split_replicas(parts, int(items_C[index]))
        if shares_P is not None and (step_s := float(parts.taken_s(shares_P).max())) < best_s:
            even_s = float(parts.taken_s(ones_P * -(-items_C[index] // ones_P.size)).max())
            best_s, best = step_s, (layouts[index], shares_P, num_K, even_s)
    if best is None:
        return None
    layout, shares_P, num_K, even_s = best
    return MixedPlan(
        by=Unevenness.REPLICAS,
        layout=replace(layout, num_micro_batches=int(shares_P.max())),
        shares=_shares(kinds, shares_P, num_K),
        step_s=best_s,
        even_step_s=even_s,
        usd_per_hour=_usd_per_hour(kinds),
    )


def _replica_layouts(
    job: TransformerJob, kinds: Sequence[LikeNodes], wish: ParallelismWish
) -> Iterator[ParallelLayout]:
    sizes = [kind.num_ranks for kind in kinds]
    micro_batches = _tried(wish.micro_batch_size, _doubled(job.num_sequences))
    policies = list(product(_tried(wish.recompute, RECOMPUTED), _tried(wish.zero_stage, REPLICA_ZERO_STAGES)))
    for tp, size in product(_tensor_degrees(job, kinds, wish), micro_batches):
        for pp in _tried(wish.pp, _doubled(job.model.num_layers)):
            if any(ranks % (tp * pp) for ranks in sizes) or job.num_sequences % size:
                continue
            dp = sum(sizes) // (tp * pp)
            for recompute, zero_stage in policies if wish.dp in {None, dp} else ():
                if zero_stage == 0 or dp > 1:
                    yield ParallelLayout(
                        dp=dp, tp=tp, pp=pp, zero_stage=zero_stage, micro_batch_size=size, recompute=recompute,
                        num_micro_batches=-(-job.num_sequences // size // dp),
                    )  # fmt: skip


def _linear_KC(
    job: TransformerJob, layouts: Sequence[ParallelLayout], kinds: Sequence[LikeNodes]
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of one more micro-batch, and those that a step takes besides: a step is linear in them."""
    few, more = 2, 4
    few_KC, more_KC = (
        np.array([_step_s_C(job, [replace(each, num_micro_batches=num) for each in layouts], kind) for kind in kinds])
        for num in (few, more)
    )
    each_KC = (more_KC - few_KC) / (more - few)
    return each_KC, few_KC - few * each_KC


def _by_stages(job: TransformerJob, kinds: Sequence[LikeNodes], wish: ParallelismWish) -> MixedPlan | None:
    model = job.model
    if len(kinds) == 1 or len(distinct_kinds(model)) > 1 or model.num_predict_ahead_layers:
        return None  # stages of models whose layers differ are not told by a number of layers
    layouts = list(_pipeline_layouts(job, kinds, wish))
    if not layouts:
        return None
    paces = [_Pace.of(job, layouts, kind) for kind in kinds]
    others_C = np.max([pace.others_s_C for pace in paces], axis=0)
    num_KC = np.array([[kind.num_ranks // (layout.tp * layout.dp) for layout in layouts] for kind in kinds])
    # with layers that could be cut all stages would be equally slow: no whole ones can be faster
    even_s_C = model.num_layers / sum(num_C / pace.layer_s_C for num_C, pace in zip(num_KC, paces, strict=True))
    least_C = others_C + even_s_C * np.array([layout.num_micro_batches for layout in layouts])
    best: MixedPlan | None = None
    for index in np.argsort(least_C, kind="stable"):
        if best is not None and least_C[index] >= best.step_s:
            break
        for order in permutations(range(len(kinds))):
            found = _dealt(job, layouts[index], [(kinds[k], paces[k], int(num_KC[k, index])) for k in order], index)
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
    return best


def _dealt(
    job: TransformerJob, layout: ParallelLayout, stages: Sequence[tuple[LikeNodes, _Pace, int]], index: int
) -> MixedPlan | None:
    """Deal layers to the stages of one layout, whose kinds follow each other in this order."""
    num_layers, num_micro_batches = job.model.num_layers, layout.num_micro_batches
    kinds, paces, numbers = zip(*stages, strict=True)
    fixed_s_P = np.zeros(sum(numbers))
    fixed_s_P[-1] = max(paces[-1].ends_s_C[index], 0.0)  # most of the ends' time is the output head's
    parts = Parts(
        each_s_P=np.repeat([pace.layer_s_C[index] for pace in paces], numbers),
        fixed_s_P=fixed_s_P,
        least_P=np.ones(sum(numbers), dtype=np.int64),
        most_P=np.repeat([pace.most_layers_C[index] for pace in paces], numbers),
    )
    layers_P = split_stages(parts, num_layers, num_micro_batches=num_micro_batches)
    if layers_P is None:
        return None
    even_P = np.diff(stage_bounds(num_layers, num_chunks=layout.pp))
    others_s = max(float(pace.others_s_C[index]) for pace in paces)
    step_s, even_s = (
        others_s + pipeline_s(parts.taken_s(each_P), num_micro_batches=num_micro_batches)
        for each_P in (layers_P, even_P)
    )
    return MixedPlan(
        by=Unevenness.STAGES,
        layout=layout,
        shares=_shares(kinds, layers_P, np.array(numbers)),
        step_s=step_s,
        even_step_s=even_s,
        usd_per_hour=_usd_per_hour(kinds),
    )


def _pipeline_layouts(
    job: TransformerJob, kinds: Sequence[LikeNodes], wish: ParallelismWish
) -> Iterator[ParallelLayout]:
    sizes = [kind.num_ranks for kind in kinds]
    doubled = _doubled(job.num_sequences)
    zero_stages = [each for each in PIPELINE_ZERO_STAGES if wish.zero_stage in {None, each}]
    policies = list(product(_tried(wish.recompute, RECOMPUTED), zero_stages))
    for tp, dp, size in product(
        _tensor_degrees(job, kinds, wish), _tried(wish.dp, doubled), _tried(wish.micro_batch_size, doubled)
    ):  # fmt: skip
        pp = sum(sizes) // (tp * dp)
        if any(ranks % (tp * dp) for ranks in sizes) or job.num_sequences % (dp * size) or pp > job.model.num_layers:
            continue
        for recompute, zero_stage in policies if wish.pp in {None, pp} else ():
            if zero_stage == 0 or dp > 1:
                yield ParallelLayout(
                    dp=dp, tp=tp, pp=pp, zero_stage=zero_stage, micro_batch_size=size, recompute=recompute,
                    num_micro_batches=job.num_sequences // dp // size,
                )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pace:
    """What stages on one kind take, for each layout.

    Seconds of a layer and of both ends of the model for one micro-batch, those of a step outside of passes and bubble,
    and how many layers memory holds: of the fullest stage, as earlier ones hold more micro-batches than later ones.
    """

    layer_s_C: FloatArray
    ends_s_C: FloatArray
    others_s_C: FloatArray
    most_layers_C: IntArray

    @classmethod
    def of(cls, job: TransformerJob, layouts: Sequence[ParallelLayout], kind: LikeNodes) -> _Pace:
        few, more = 2, 4
        machine = _machine(kind, len(layouts))
        alone = LayoutTable.of(replace(layout, pp=1, num_micro_batches=1) for layout in layouts)
        few_s_C, more_s_C = (slowest_micro_batch(_cut(job, num), alone, machine).total_s_C for num in (few, more))
        layer_s_C = (more_s_C - few_s_C) / (more - few)
        terms = step_terms(job, LayoutTable.of(layouts), machine)
        outside = [seconds for name, seconds in terms.items() if name not in _IN_PASSES]
        return cls(
            layer_s_C=layer_s_C,
            ends_s_C=few_s_C - few * layer_s_C,
            others_s_C=np.sum(outside, axis=0),
            most_layers_C=_most_layers_C(job, layouts, kind),
        )


def _most_layers_C(job: TransformerJob, layouts: Sequence[ParallelLayout], kind: LikeNodes) -> IntArray:
    most_C = np.zeros(len(layouts), dtype=np.int64)
    chip, table = kind.shape.accelerator, LayoutTable.of(layouts)
    for pp in np.unique(table.pp_C).tolist():
        chosen = np.flatnonzero(table.pp_C == pp)
        per_stage = -(-job.model.num_layers // pp)
        less, full = (
            memory_totals(_cut(job, num * pp), table.take(chosen), reserved_bytes=chip.reserved_bytes)
            for num in (per_stage, per_stage + 1)
        )
        layer_bytes = np.maximum(full - less, 1)
        room_bytes = usable_bytes(chip) - (less - per_stage * layer_bytes)
        most_C[chosen] = np.maximum(room_bytes // layer_bytes, 0).astype(np.int64)
    return most_C


def _cut(job: TransformerJob, num_layers: int) -> TransformerJob:
    return replace(job, model=replace(job.model, num_layers=num_layers))


def _that_fit(
    job: TransformerJob, layouts: Sequence[ParallelLayout], kinds: Sequence[LikeNodes]
) -> list[ParallelLayout]:
    if not layouts:
        return []
    # a replica of a faster kind gets more micro-batches than the mean, and may fill a pipeline that the mean does not
    full = [replace(layout, num_micro_batches=max(layout.num_micro_batches, layout.pp)) for layout in layouts]
    totals_C = memory_totals(job, LayoutTable.of(full))
    least_bytes = min(usable_bytes(kind.shape.accelerator) - kind.shape.accelerator.reserved_bytes for kind in kinds)
    return [layout for layout, total in zip(layouts, totals_C.tolist(), strict=True) if total <= least_bytes]


def _step_s_C(job: TransformerJob, layouts: Sequence[ParallelLayout], kind: LikeNodes) -> FloatArray:
    terms = step_terms(job, LayoutTable.of(layouts), _machine(kind, len(layouts)))
    return np.asarray(np.sum(list(terms.values()), axis=0))


def _machine(kind: LikeNodes, num_candidates: int) -> Machine:
    return Machine(
        shape=kind.shape,
        ranks_per_node_C=np.full(num_candidates, kind.shape.num_accelerators),
        calibration=kind.calibration,
    )


def _tensor_degrees(job: TransformerJob, kinds: Sequence[LikeNodes], wish: ParallelismWish) -> Iterator[int]:
    most = min(kind.shape.num_accelerators for kind in kinds)
    sizes = (job.model.num_heads, job.model.num_kv_heads, job.model.ffn_hidden_size)
    for degree in _tried(wish.tp, _doubled(most)):
        if degree <= most and not any(size % degree for size in sizes):
            yield degree


def _tried(pinned: T | None, options: Iterable[T]) -> Sequence[T]:
    return list(options) if pinned is None else [pinned]


def _doubled(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length())]


def _shares(kinds: Sequence[LikeNodes], amounts_P: IntArray, num_K: IntArray) -> tuple[Share, ...]:
    ends = np.cumsum(num_K)
    return tuple(
        Share(
            node_shape=kind.shape.name, num_ranks=kind.num_ranks,
            amounts=tuple(int(each) for each in amounts_P[end - num : end]),
        )
        for kind, end, num in zip(kinds, ends.tolist(), num_K.tolist(), strict=True)
    )  # fmt: skip


def _usd_per_hour(kinds: Sequence[LikeNodes]) -> float:
    return sum(kind.num_nodes * kind.shape.usd_per_hour for kind in kinds)
