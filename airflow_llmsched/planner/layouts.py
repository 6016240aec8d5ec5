"""Every legal way to split a workload over numbers of ranks, and why the others are not legal. Pure.

Candidates are the full product of the degrees that multiply to the world size with expert parallelism, micro-batch,
pipeline schedule, ZeRO stage, shard size, offload and recomputation. The product is never written out whole: most rules
concern few factors, so it is kept in factors, and a candidate that falls out counts for all that would have come of it.

Axes: C = candidate layout, S = stem (degrees, micro-batch and schedule), H = sharding (ZeRO, shard size and offload),
P = recompute policy, D = combination of degrees. A row is a stem with one of its shardings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_llmsched.domain.layout import Offload, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.factored import code
from airflow_llmsched.planner.layout_rules import (
    BATCH_RULES,
    DEGREE_RULES,
    SCHEDULE_RULES,
    SHARDING_RULES,
    LayoutRule,
    Question,
    Rule,
)
from airflow_llmsched.planner.layout_table import (
    MODULE_BIT,
    OFFLOAD_ORDER,
    RECOMPUTE_ORDER,
    SCHEDULE_ORDER,
    IntArray,
    LayoutTable,
)
from airflow_llmsched.planner.perf.job import heaviest_phase

Policy = tuple[int, int]
"""Code of a recompute policy, and the bits of its modules."""

WHOLE_POLICIES: Sequence[Policy] = tuple(
    (RECOMPUTE_ORDER.index(each), 0) for each in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
)
"""Policies that treat a layer as a whole, from the least recomputed to the most."""


SHARD_SIZE_STEP = 4
"""Of shard sizes above a node's, each that is tried is at least so many times the one before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutSpace:
    """The legal layouts in factors, and how many candidates fell to each rule.

    Stem s has the ``num_S`` shardings from ``first_S`` on, and each such row every policy. Rows are numbered in order
    of their stems. Columns of ``stems`` that a sharding or a policy decides are placeholders.
    """

    stems: LayoutTable
    first_S: IntArray
    num_S: IntArray
    zero_H: IntArray
    shard_H: IntArray
    offload_H: IntArray
    policies: Sequence[Policy]
    num_candidates: int
    rejections: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.num_rows * len(self.policies)

    @property
    def num_rows(self) -> int:
        """Legal layouts but for the policy."""
        return int(self.num_S.sum())

    @property
    def table(self) -> LayoutTable:
        """All legal layouts, written out."""
        num_policies = len(self.policies)
        row_C = np.repeat(np.arange(self.num_rows), num_policies)
        return self.expand(row_C, np.tile(np.arange(num_policies), self.num_rows))

    def rows_of(self, stem_S: IntArray) -> IntArray:
        """Return the rows of some stems, one stem after the other."""
        num = self.num_S[stem_S]
        place = np.arange(int(num.sum())) - np.repeat(np.cumsum(num) - num, num)
        return np.repeat((np.cumsum(self.num_S) - self.num_S)[stem_S], num) + place

    def stem_of(self, row_R: IntArray) -> IntArray:
        """Return the stem of each row."""
        return np.searchsorted(np.cumsum(self.num_S), row_R, side="right")

    def expand(self, row_C: IntArray, policy_C: IntArray) -> LayoutTable:
        """Write out rows, each with one of the policies, by number."""
        stem_C = self.stem_of(row_C)
        sharding_C = self.first_S[stem_C] + row_C - (np.cumsum(self.num_S) - self.num_S)[stem_C]
        return replace(
            self._with(stem_C, policy_C),
            zero_C=self.zero_H[sharding_C],
            shard_C=self.shard_H[sharding_C],
            offload_C=self.offload_H[sharding_C],
        )

    def most_sharded(self, stem_C: IntArray, policy_C: IntArray) -> LayoutTable:
        """Write out stems with everything sharded over all replicas, each with one of the policies.

        That is the least that a rank can hold, whether or not it is one of the stem's own shardings.
        """
        table = self._with(stem_C, policy_C)
        return replace(table, zero_C=np.full(len(table), 3), shard_C=table.dp_C * table.cp_C)

    def _with(self, stem_C: IntArray, policy_C: IntArray) -> LayoutTable:
        recompute_P, modules_P = np.array(self.policies, dtype=np.int64).T
        return replace(self.stems.take(stem_C), recompute_C=recompute_P[policy_C], modules_C=modules_P[policy_C])


def legal_layouts(
    workload: WorkloadSpec,
    *,
    world_sizes: Iterable[int],
    slots_per_node: int,
    slots_per_domain: int | None = None,
    offloads: Sequence[Offload] = (Offload.NONE,),
) -> LayoutSpace:
    """Return all legal layouts of ``workload``.

    The global batch is exactly the one asked for, in every phase of a schedule. Of a pinned degree no other value is
    tried. Where an axis has many values of no use, those in use are tried: experts are split as other layers are or not
    at all, a stage into chunks that divide its layers; ZeRO shards over all replicas, over those of a node, or over
    some multiples of these; of a layer the sets of modules are recomputed that trainers know.

    Args:
        workload: What to train.
        world_sizes: Numbers of ranks to split it over.
        slots_per_node: Ranks on a node at most.
        slots_per_domain: Ranks that the fastest links join at most, those of a node unless told.
        offloads: What may leave the accelerator's memory, unless that is pinned.

    Raises:
        ValueError: a world size or ``slots_per_node`` is below 1.
    """
    sizes, per_domain = list(world_sizes), slots_per_domain or slots_per_node
    if sizes and min(slots_per_node, *sizes) < 1:
        raise ValueError(f"world_sizes={sizes} and slots_per_node={slots_per_node} must be at least 1")
    question = Question(workload=workload, slots_per_node=slots_per_node, slots_per_domain=per_domain)
    axes = _Axes(question=question, offloads=offloads if question.model else (Offload.NONE,))
    sieve, num_policies = _Sieve(question=question), len(axes.policies())
    degrees = LayoutTable.concatenate(axes.degrees(size) for size in sizes)
    schedules = _Options.of((degrees.pp_C,), axes.schedules)
    shardings = _Options.of((degrees.dp_C, degrees.cp_C, degrees.tp_C), axes.shardings)
    num_below_C = axes.num_micro_batch_sizes * schedules.num_C * shardings.num_C * num_policies
    num_candidates = int(num_below_C.sum())
    origin = sieve(DEGREE_RULES, degrees, num_below_C)

    parent, stems = axes.with_micro_batches(degrees.take(origin))
    origin = origin[parent]
    kept = sieve(BATCH_RULES, stems, (schedules.num_C * shardings.num_C)[origin] * num_policies)
    parent, rows = schedules.of_each(origin[kept])
    origin, stems = origin[kept][parent], stems.take(kept[parent])
    stems = replace(stems, schedule_C=rows[:, 0], vp_C=rows[:, 1])
    kept = sieve(SCHEDULE_RULES, stems, shardings.num_C[origin] * num_policies)
    origin, stems = origin[kept], stems.take(kept)

    num_stems_C = np.bincount(origin, minlength=len(degrees))
    parent, rows = shardings.of_each(np.flatnonzero(num_stems_C))
    parent = np.flatnonzero(num_stems_C)[parent]
    sharded = replace(degrees.take(parent), zero_C=rows[:, 0], shard_C=rows[:, 1], offload_C=rows[:, 2])
    kept = sieve(SHARDING_RULES, sharded, num_stems_C[parent] * num_policies)
    num_C = np.bincount(parent[kept], minlength=len(degrees))
    return LayoutSpace(
        stems=stems, first_S=(np.cumsum(num_C) - num_C)[origin], num_S=num_C[origin], zero_H=rows[kept, 0],
        shard_H=rows[kept, 1], offload_H=rows[kept, 2], policies=axes.policies(), num_candidates=num_candidates,
        rejections=sieve.rejections,
    )  # fmt: skip


def divisors(number: int) -> IntArray:
    """Return all divisors of a positive number, ascending."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return np.array(sorted({*small, *(number // each for each in small)}), dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class _Sieve:
    """Asks rules in their order, and counts what falls out."""

    question: Question
    rejections: dict[str, int] = field(default_factory=dict)

    def __call__(self, rules: Sequence[tuple[LayoutRule, Rule]], table: LayoutTable, weight_C: IntArray) -> IntArray:
        """Return the indices of what passes all rules. ``weight_C`` is the number of layouts that come of each."""
        kept = np.arange(len(table))
        for rule, passes in rules:
            passes_C = passes(self.question, table)
            if passes_C.all():
                continue
            num_turned_down = int(weight_C[kept[~passes_C]].sum())
            if num_turned_down:
                self.rejections[rule.value] = self.rejections.get(rule.value, 0) + num_turned_down
            kept, table = kept[passes_C], table.take(passes_C)
        return kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Options:
    """Rows of values that come up for each candidate, the same for candidates that are alike."""

    rows: IntArray
    first_C: IntArray
    num_C: IntArray

    @classmethod
    def of(cls, columns: Sequence[IntArray], options: Callable[..., IntArray]) -> _Options:
        """Ask for the ``options`` of each distinct combination of ``columns``."""
        which_C = np.zeros_like(columns[0])
        for column_C in columns:
            values, index_C = code(column_C)
            which_C = code(which_C * len(values) + index_C)[1]
        one_of = np.unique(which_C, return_index=True)[1]
        found = [options(*(int(column_C[number]) for column_C in columns)) for number in one_of.tolist()]
        counts = np.array([len(each) for each in found], dtype=np.int64)
        rows = np.concatenate(found) if found else options(*(1 for _ in columns))[:0]
        return cls(rows=rows, first_C=(np.cumsum(counts) - counts)[which_C], num_C=counts[which_C])

    def of_each(self, chosen: IntArray) -> tuple[IntArray, IntArray]:
        """Return, for the chosen candidates, all their rows end to end, and before them whose each is."""
        num = self.num_C[chosen]
        parent = np.repeat(np.arange(len(chosen)), num)
        place = np.arange(len(parent)) - np.repeat(np.cumsum(num) - num, num)
        return parent, self.rows[self.first_C[chosen][parent] + place]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """The values that are tried of each factor."""

    question: Question
    offloads: Sequence[Offload]

    def degrees(self, world_size: int) -> LayoutTable:
        """Return dp, tp, pp, cp, ep and expert-tp of one world size; the rest are placeholders."""
        pins, experts = self.question.pins, self.question.experts
        sizes = divisors(world_size)
        axes = (
            _choices(pins.tp, sizes),
            _choices(pins.pp, sizes),
            _choices(pins.cp, sizes),
            _choices(pins.ep, divisors(experts.num_routed) if experts else [1]),
            # 0 stands for as many as tp.
            _choices(pins.expert_tp, [1, 0] if experts else [0]),
        )
        tp_C, pp_C, cp_C, ep_C, etp_C = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        is_new_C = (etp_C != 0) | (tp_C > 1) | (len(axes[4]) == 1)
        comes_up_C = (world_size % (tp_C * pp_C * cp_C) == 0) & is_new_C
        tp_C, pp_C, cp_C, ep_C, etp_C = (each[comes_up_C] for each in (tp_C, pp_C, cp_C, ep_C, etp_C))
        dp_C = world_size // (tp_C * pp_C * cp_C)
        nothing_C, one_C = np.zeros_like(dp_C), np.ones_like(dp_C)
        return LayoutTable(
            dp_C=dp_C, tp_C=tp_C, pp_C=pp_C, cp_C=cp_C, ep_C=ep_C, etp_C=np.where(etp_C == 0, tp_C, etp_C),
            zero_C=nothing_C, micro_batch_C=one_C, num_micro_batches_C=one_C, recompute_C=nothing_C, vp_C=one_C,
            schedule_C=nothing_C, offload_C=nothing_C, shard_C=dp_C * cp_C, sequence_parallel_C=one_C,
            modules_C=nothing_C,
        )  # fmt: skip

    @property
    def num_micro_batch_sizes(self) -> int:
        """How many micro-batch sizes come up for each combination of degrees."""
        if self.question.pins.micro_batch_size is not None or self.question.model is None:
            return 1
        return len(divisors(heaviest_phase(self.question.workload).num_sequences))

    def with_micro_batches(self, degrees: LayoutTable) -> tuple[IntArray, LayoutTable]:
        """Return degrees with each micro-batch, and where they come from."""
        workload, pinned = self.question.workload, self.question.pins.micro_batch_size
        world_C = degrees.world_size_C
        num_sequences_C = np.full_like(world_C, heaviest_phase(workload).num_sequences) if workload.batch else world_C
        if pinned is not None:
            micro_CM = np.full((len(degrees), 1), pinned, dtype=np.int64)
        elif self.question.model is None:
            # Nothing says that a job without a model accumulates gradients: each rank takes its share at once.
            micro_CM = np.maximum(num_sequences_C // world_C, 1)[:, None]
        else:
            sizes = divisors(heaviest_phase(workload).num_sequences)
            micro_CM = np.tile(sizes, (len(degrees), 1))
        origin = np.repeat(np.arange(len(degrees)), micro_CM.shape[1])
        table, micro_C = degrees.take(origin), micro_CM.ravel()
        num_micro_batches_C = num_sequences_C[origin] // np.maximum(table.dp_C * micro_C, 1)
        return origin, replace(table, micro_batch_C=micro_C, num_micro_batches_C=num_micro_batches_C)

    def schedules(self, pp: int) -> IntArray:
        """Return schedules with their chunks. Pins that go with no schedule come up once, for a rule to turn down."""
        pins, model = self.question.pins, self.question.model
        layers_per_stage = -(-model.num_layers // pp) if model else 1
        known = list(PipelineSchedule) if model else [PipelineSchedule.ONE_F_ONE_B]
        kinds = [pins.schedule] if pins.schedule else known
        chunks = _choices(pins.vp, divisors(layers_per_stage)).tolist()
        pairs = [(kind, vp) for kind in kinds for vp in chunks]
        fitting = [
            (kind, vp) for kind, vp in pairs
            if (vp > 1) == (kind is PipelineSchedule.INTERLEAVED)
            and (pp > 1 or kind is PipelineSchedule.ONE_F_ONE_B)
        ]  # fmt: skip
        chosen = fitting or pairs[:1]
        return np.array([(SCHEDULE_ORDER.index(kind), vp) for kind, vp in chosen], dtype=np.int64)

    def shardings(self, dp: int, cp: int, tp: int) -> IntArray:
        """Return ZeRO stages with what they may shard over, and with each offload."""
        pins, num_replicas = self.question.pins, dp * cp
        stages = _choices(pins.zero_stage, range(4) if self.question.model else [0]).tolist()
        everything, part = [num_replicas], list(self._parts(dp, cp, tp))
        if pins.shard_size is not None:
            everything, part = [pins.shard_size], []
        elif self.question.uses_shipped_trainer:
            part = []
        offloads = [OFFLOAD_ORDER.index(each) for each in ([pins.offload] if pins.offload else self.offloads)]
        return np.array(
            [
                (stage, size, offload)
                for stage in stages
                for size in (everything if stage == 0 else [*part, *everything])
                for offload in offloads
            ],
            dtype=np.int64,
        )

    def _parts(self, dp: int, cp: int, tp: int) -> Iterator[int]:
        """Yield the shard sizes that fill a node, and from there several times as many."""
        least = max(2, -(-self.question.slots_per_node // tp))
        for size in (cp * divisors(dp)).tolist():
            if least <= size < dp * cp:
                yield size
                least = SHARD_SIZE_STEP * size

    def policies(self) -> Sequence[Policy]:
        """Return whole policies first, then the sets of modules that none of these stands for."""
        pinned = self.question.pins.recompute
        if self.question.model is None:
            policies: list[Policy] = [WHOLE_POLICIES[0]]
        elif self.question.uses_shipped_trainer and pinned is None:
            policies = list(WHOLE_POLICIES)
        else:
            policies = [*WHOLE_POLICIES, *module_policies()]
        if pinned is not None:
            policies = [each for each in policies if each[0] == RECOMPUTE_ORDER.index(pinned)]
        return policies


def module_policies() -> Sequence[Policy]:
    """Return the sets of modules that trainers are known to recompute, but for what a whole policy stands for already.

    Megatron-LM recomputes any of core attention, norms and MLP (core attention alone is ``SELECTIVE``); torchtitan
    every second product, beside a fused attention kernel or not.
    """
    core, norms, mlp, by_op = (
        MODULE_BIT[module]
        for module in (
            RecomputeModule.CORE_ATTENTION,
            RecomputeModule.NORMS,
            RecomputeModule.MLP,
            RecomputeModule.EVERY_SECOND_PRODUCT,
        )
    )
    sets = (norms, mlp, norms | mlp, core | norms, core | mlp, core | norms | mlp, by_op, core | by_op)
    return [(RECOMPUTE_ORDER.index(Recompute.MODULES), bits) for bits in sets]


def _choices(pinned: int | None, options: Iterable[int] | IntArray) -> IntArray:
    return np.array(list(options) if pinned is None else [pinned], dtype=np.int64)
