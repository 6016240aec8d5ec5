"""Plans one change away from a chosen one, on the same ranks and nodes: what they would cost, or why not. Pure.

An explanation compares with these, so that what it says of a choice was computed for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import MAX_ZERO_STAGE, ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.plan import Plan, Prediction
from airflow_llmsched.domain.workload import ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.evaluate import evaluate, usable_bytes
from airflow_llmsched.planner.layout_rules import LayoutRule
from airflow_llmsched.planner.layout_table import Expresses, LayoutTable
from airflow_llmsched.planner.layouts import legal_layouts
from airflow_llmsched.planner.perf.job import heaviest_phase
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.placed_machine import NODE, PlacedMachine
from airflow_llmsched.units import GB

_DEGREES = ("tp", "pp", "cp")
_RECOMPUTE = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One change of one thing.

    Attributes:
        field: what was changed, a field of the layout.
        layout: the layout after it.
        obstacle: the rule that the layout breaks, in words; None when it is legal.
        prediction: what it would cost; None when it is not legal.
        missing_bytes: how much more memory the fullest rank needs than a plan may use; 0 when it fits.
    """

    field: str
    layout: ParallelLayout
    obstacle: str | None = None
    prediction: Prediction | None = None
    missing_bytes: int = 0

    @property
    def value(self) -> object:
        """What the field was changed to."""
        return getattr(self.layout, self.field)


def neighbours(
    workload: WorkloadSpec,
    plan: Plan,
    machine: PlacedMachine,
    *,
    expresses: Expresses | None = None,
) -> tuple[Neighbour, ...]:
    """Return the plans one change away from ``plan``, in a fixed order, each priced where the plan's ranks are.

    Degrees are doubled and halved against data parallelism (or pipeline stages, where there is one replica), chunks of
    a stage too, ZeRO goes a stage up and down, the micro-batch is doubled and halved, and other schedules and recompute
    policies are tried. Whatever the workload pins stays; what ``expresses`` denies is an obstacle. ``machine`` is the
    one that the plan was priced on.
    """
    if workload.model is None:
        return ()
    pinned = {field.name for field in fields(workload.parallelism) if _pin(workload, field.name) is not None}
    found = []
    for name, layout in _changes(workload, plan.layout):
        changed = {
            each.name for each in fields(layout) if getattr(layout, each.name) != getattr(plan.layout, each.name)
        }
        if changed & pinned:
            continue
        obstacle = _obstacle(workload, layout, machine)
        if obstacle is None and expresses is not None and not expresses(LayoutTable.of([layout]))[0]:
            obstacle = "the trainer cannot express it"
        if obstacle is None:
            found.append(_priced(workload, plan, machine, layout, field=name))
        else:
            found.append(Neighbour(field=name, layout=layout, obstacle=obstacle))
    return tuple(found)


def _pin(workload: WorkloadSpec, name: str) -> object:
    return getattr(workload.parallelism, name)


def _changes(workload: WorkloadSpec, layout: ParallelLayout) -> Iterator[tuple[str, ParallelLayout]]:
    num_sequences = heaviest_phase(workload).num_sequences
    for name, moved in _changed_layouts(workload, layout):
        changed = _with_chunks_kept(moved, layout)
        share = changed.dp * changed.micro_batch_size
        yield name, replace(changed, num_micro_batches=max(num_sequences // share, 1))


def _with_chunks_kept(changed: ParallelLayout, layout: ParallelLayout) -> ParallelLayout:
    """Deal as many chunks of layers as before to another number of stages; a lone stage has no schedule to speak of."""
    if changed.pp == layout.pp:
        return changed
    vp = max(layout.pp * layout.vp // changed.pp, 1) if layout.vp > 1 and changed.pp > 1 else 1
    if vp > 1:
        return replace(changed, vp=vp, schedule=PipelineSchedule.INTERLEAVED)
    keeps = layout.schedule is PipelineSchedule.ZERO_BUBBLE and changed.pp > 1
    return replace(changed, vp=1, schedule=layout.schedule if keeps else PipelineSchedule.ONE_F_ONE_B)


def _changed_layouts(workload: WorkloadSpec, layout: ParallelLayout) -> Iterator[tuple[str, ParallelLayout]]:
    for name in _DEGREES:
        degree = getattr(layout, name)
        partner = next((other for other in ("dp", "pp") if other != name and getattr(layout, other) % 2 == 0), None)
        if partner is not None:
            yield name, replace(layout, **{name: degree * 2, partner: getattr(layout, partner) // 2})
        if degree % 2 == 0:
            yield name, replace(layout, **{name: degree // 2, "dp": layout.dp * 2})
    if layout.pp > 1:
        yield from _other_pipelines(layout)
    if workload.model is not None and workload.model.experts is not None:
        yield from _doubled_and_halved(layout, "ep")
    if layout.zero_stage < MAX_ZERO_STAGE:
        yield "zero_stage", replace(layout, zero_stage=layout.zero_stage + 1)
    if layout.zero_stage > 0:
        yield "zero_stage", replace(layout, zero_stage=layout.zero_stage - 1)
    yield from _doubled_and_halved(layout, "micro_batch_size")
    for policy in _RECOMPUTE:
        if policy is not layout.recompute:
            yield "recompute", replace(layout, recompute=policy, recompute_modules=())


def _other_pipelines(layout: ParallelLayout) -> Iterator[tuple[str, ParallelLayout]]:
    """Several chunks on a stage, and only those, are interleaved."""
    yield "vp", replace(layout, vp=layout.vp * 2, schedule=PipelineSchedule.INTERLEAVED)
    if layout.vp % 2 == 0:
        schedule = PipelineSchedule.INTERLEAVED if layout.vp > 2 else PipelineSchedule.ONE_F_ONE_B
        yield "vp", replace(layout, vp=layout.vp // 2, schedule=schedule)
    for schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE):
        if layout.vp == 1 and schedule is not layout.schedule:
            yield "schedule", replace(layout, schedule=schedule)


def _doubled_and_halved(layout: ParallelLayout, name: str) -> Iterator[tuple[str, ParallelLayout]]:
    degree = getattr(layout, name)
    yield name, replace(layout, **{name: degree * 2})
    if degree % 2 == 0:
        yield name, replace(layout, **{name: degree // 2})


def _obstacle(workload: WorkloadSpec, layout: ParallelLayout, machine: PlacedMachine) -> str | None:
    """Return the rule that turns down ``layout``, asked of the rules themselves; None when it is legal."""
    pins = {field.name: getattr(layout, field.name) for field in fields(ParallelismWish) if hasattr(layout, field.name)}
    asked = replace(workload, parallelism=ParallelismWish(**pins))
    ground = machine.grounds[int(machine.ground_C[0])]
    space = legal_layouts(
        asked, world_sizes=[layout.world_size], slots_per_node=ground.levels[NODE].most,
        slots_per_domain=ground.scale_up.most,
    )  # fmt: skip
    wanted = LayoutTable.of([layout])
    table = space.table
    matches_C = np.all(
        [getattr(table, each.name) == getattr(wanted, each.name)[0] for each in fields(LayoutTable)], axis=0
    )
    if matches_C.any():
        widest = max(layout.tp, layout.expert_tp or 1)
        is_torn = ground.scale_up.spread(stride=1, size=widest).num_domains > 1
        return "a group of these ranks would be torn between two domains of the fastest links" if is_torn else None
    # Every candidate that a rule turned down had this layout's degrees: the last rule is the one nearest to passing.
    reason = next(reversed(list(space.rejections)), "no such layout is among those that are searched")
    if reason != LayoutRule.TP_INSIDE_DOMAIN:
        return reason
    return reason + _where_links_end(machine.shape, layout.tp, most=ground.scale_up.most)


def _where_links_end(shape: NodeShape, num_ranks: int, *, most: int) -> str:
    """Say at how many accelerators the fastest links end, or how many of the gang's ranks they join at ``most``."""
    near, far = shape.levels[0], shape.levels[1]
    if near.num_accelerators is None or num_ranks <= near.num_accelerators:
        return f": {near.fabric.name} joins at most {most} of these ranks"
    return (
        f": {near.fabric.name} ends with {near.num_accelerators} accelerators, each with "
        f"{near.bandwidth_bytes_per_s / GB:,.3g} GB/s each way, and {far.fabric.name} beyond it has "
        f"{far.bandwidth_bytes_per_s / GB:,.3g} GB/s for each"
    )


def _priced(workload: WorkloadSpec, plan: Plan, machine: Machine, layout: ParallelLayout, *, field: str) -> Neighbour:
    evaluation = evaluate(workload, LayoutTable.of([layout]), machine)
    return Neighbour(
        field=field,
        layout=layout,
        prediction=evaluation.prediction(0, usd_per_hour=plan.prediction.usd_per_hour),
        missing_bytes=max(0, int(evaluation.memory_bytes_C[0]) - int(usable_bytes(machine.shape.accelerator))),
    )


def term_changes_s(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how many seconds each term changes, the largest change first."""
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    return dict(sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0])))
