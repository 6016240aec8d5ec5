"""A plan search in words: what was chosen and why, what binds, what it was chosen over, what was turned down. Pure.

Every comparison is of numbers that were computed for both sides; nothing is said of a layout that was not evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from airflow_llmsched.domain.hardware import NodeShape, Transport
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.plan import LaunchSetting, Plan, PlanSearch, Prediction
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import BudgetSpec, WorkloadSpec
from airflow_llmsched.planner import compressed, recomputed
from airflow_llmsched.planner.layout_table import Expresses
from airflow_llmsched.planner.links import AsMeasured, as_claimed, measured_words, reckoned_tree
from airflow_llmsched.planner.neighbours import Neighbour, neighbours, term_changes_s
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.units import DAY_S, GB, GIB, HOUR_S, KWH_J, MINUTE_S

STEP_TERMS = {
    "matmul": "matrix products",
    "attention": "attention",
    "elementwise": "what memory bounds between matrix products",
    "launch": "waiting for the host to launch kernels",
    "recompute": "computing activations again",
    "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "passing keys and values around",
    "expert_parallel": "sending tokens to their experts",
    "pipeline_bubble": "the pipeline's fill and drain",
    "pipeline_transfer": "sending activations between pipeline stages",
    "data_parallel": "gradient and weight traffic that compute does not hide",
    "optimizer": "the optimizer",
    "offload_traffic": "moving gradients, weights and activations to the host and back",
    "offload_update": "the optimizer on the host",
    "compression": "compressing gradients",
    "data_loading": "waiting for input",
    "stragglers": "waiting for the slowest rank",
}
"""What a term of the step breakdown is, for readers."""

FIELDS = {
    "tp": "Tensor parallelism (tp)",
    "pp": "Pipeline parallelism (pp)",
    "vp": "Chunks on a stage (vp)",
    "schedule": "The pipeline's schedule",
    "cp": "Context parallelism (cp)",
    "ep": "Expert parallelism (ep)",
    "zero_stage": "The ZeRO stage",
    "micro_batch_size": "The micro-batch",
    "recompute": "Recomputation",
}
"""Fields of a layout that are changed one at a time, for readers."""

_OFFLOADED = {
    Offload.OPTIMIZER_HOST: "Optimizer state stays in host memory, where the optimizer runs.",
    Offload.OPTIMIZER_NVME: "Optimizer state stays on the node's disks.",
    Offload.PARAMETERS_HOST: "Optimizer state and weights stay in host memory between their uses.",
    Offload.PARAMETERS_NVME: "Optimizer state and weights stay on the node's disks between their uses.",
    Offload.ACTIVATIONS_HOST: "Kept activations wait for the backward pass in host memory.",
}
_MOVED_BY = {
    Transport.CARD: "",
    Transport.DPU: ", moved by processors on the network cards (DPU)",
    Transport.HOST: ", moved by the host's cores",
}
_UNITS = ((DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes"))
_MAX_REASONS = 8
_MAX_TERMS = 2
_SAME_RATIO = 0.005
"""Steps closer than this are called equal: the prediction is not that good."""
_TELLING_RATIO = 0.1
"""Share of a difference from which on a term is named as its cause."""


def explain_plan(
    workload: WorkloadSpec,
    search: PlanSearch,
    tree: TopologyTree,
    shapes: Mapping[str, NodeShape],
    *,
    expresses: Expresses | None = None,
    calibration: Calibration | None = None,
    as_measured: AsMeasured = as_claimed,
) -> str:
    """Return :func:`explain` of a search for ``workload``, its best plan compared with what is one change away.

    Links that checks of nodes measured, limits of the budget that the run does not keep, what computing again layer by
    layer would save, and what compressing gradients would save or risks, is said last.

    Args:
        workload: what was planned.
        search: what was found and turned down.
        tree: the nodes that were searched.
        shapes: the node shapes that were searched, by name.
        expresses: what the trainer can express, as the search was told.
        calibration: what the search reckoned with.
        as_measured: what was measured of links, as the search was told.
    """
    if not search.plans:
        return explain(search)
    best = search.plans[0]
    tree = reckoned_tree(tree, best, as_measured)
    placed = PlacedMachine.on(best.placement, tree=tree, shape=shapes[best.node_shape])
    machine = replace(placed, calibration=calibration)
    around = neighbours(workload, best, machine, expresses=expresses)
    parts = (
        explain(search, around),
        measured_words(tree),
        _beyond_limits(workload.budget, best.prediction),
        recomputed.words(workload, best, machine),
        compressed.words(workload, best, machine),
    )
    return "\n\n".join(filter(None, parts))


def explain(search: PlanSearch, around: Sequence[Neighbour] = ()) -> str:
    """Return a few short paragraphs, the same for the same search.

    Args:
        search: what was found and turned down.
        around: plans one change away from the best one (``planner.neighbours``), to compare it with.
    """
    return "\n\n".join(_paragraphs(search, around))


def _paragraphs(search: PlanSearch, around: Sequence[Neighbour]) -> Iterator[str]:
    if not search.plans:
        yield f"No plan: none of {search.num_candidates:,} candidates can run."
        if search.relaxation:
            yield f"What would help: {search.relaxation}."
    else:
        best = search.plans[0]
        yield f"Chosen: {best.summary()}."
        yield from search.notes
        yield " ".join(_layout_sentences(best.layout))
        if best.spans:
            yield _where(best)
        if best.launch_settings:
            yield "\n".join(_settings(best.launch_settings))
        yield _what_binds(best.prediction)
        yield _memory(best.prediction)
        if best.prediction.run_s:
            yield _run(best.prediction)
        if around:
            yield _one_change_away(best, search.plans, around)
        yield from _against_next(best, search.plans[1:])
        yield from _alternatives(best, search.plans[1:])
    if search.rejections:
        yield _turned_down(search)


def _layout_sentences(layout: ParallelLayout) -> Iterator[str]:
    yield (
        f"Data parallelism: {layout.dp} x {layout.num_micro_batches} micro-batches of {layout.micro_batch_size}, "
        f"{layout.global_batch_size} sequences a step."
    )
    if layout.tp > 1:
        yield f"Each layer is split over {layout.tp} accelerators (tp)."
    if layout.pp > 1:
        chunks = f", each of {layout.vp} chunks that take turns" if layout.vp > 1 else ""
        filled = ", and gradients to weights fill the bubble" * (layout.schedule is PipelineSchedule.ZERO_BUBBLE)
        yield f"The layers are split into {layout.pp} stages (pp){chunks}{filled}."
    if layout.cp > 1:
        yield f"Each sequence is split over {layout.cp} ranks (cp)."
    if layout.ep > 1:
        split = (
            ""
            if layout.expert_tp in {None, layout.tp}
            else (", each whole" if layout.expert_tp == 1 else f", each split over {layout.expert_tp}")
        )
        yield f"The experts are spread over {layout.ep} ranks (ep){split}."
    if layout.zero_stage:
        shared = ("optimizer state", "optimizer state and gradients", "optimizer state, gradients and weights")
        groups = f", in groups of {layout.shard_size}" if layout.shard_size else ""
        yield f"Replicas share out {shared[layout.zero_stage - 1]} (ZeRO {layout.zero_stage}){groups}."
    if layout.offload in _OFFLOADED:
        yield _OFFLOADED[layout.offload]
    yield from _recompute_sentences(layout)


def _recompute_sentences(layout: ParallelLayout) -> Iterator[str]:
    if layout.recompute is Recompute.SELECTIVE:
        yield "Attention scores are computed again instead of kept, as a fused attention kernel does."
    if layout.recompute is Recompute.FULL:
        yield "Every layer is computed again in the backward pass instead of kept."
    if layout.recompute is Recompute.MODULES:
        names = ", ".join(module.value for module in layout.recompute_modules)
        yield f"These parts of each layer are computed again instead of kept: {names}."


def _where(plan: Plan) -> str:
    """Say where the groups are, those that are spread most: a step waits for all of them."""
    lines = ["Where the ranks of a group are, of the one that is spread most:"]
    for span in plan.spans:
        inside = f", in one {span.level}" * (span.level is not None and span.num_nodes > 1)
        nodes = f"{span.num_nodes} node{'s' * (span.num_nodes > 1)}"
        added = ", whose switches add up" * span.reduces
        lines.append(
            f"  {span.group}: {span.num_ranks} ranks on {nodes}{inside}, over {span.fabric} at "
            f"{span.bytes_per_s / GB:,.3g} GB/s each way{added}{_MOVED_BY[span.transport]}"
        )
    return "\n".join(lines)


def _settings(settings: Sequence[LaunchSetting]) -> Iterator[str]:
    yield "The network is reckoned with these in the environment of every rank:"
    for each in settings:
        yield f"  {each.name}={each.value}: {each.why}"


def _what_binds(prediction: Prediction) -> str:
    if not prediction.step_s:
        return "Nothing is known of the time a step takes: the job states neither a model nor traffic."
    terms = sorted(prediction.step_breakdown_s.items(), key=lambda item: (-item[1], item[0]))
    shares = [f"{STEP_TERMS.get(name, name)} {seconds / prediction.step_s:.0%}" for name, seconds in terms[:4]]
    low, high = prediction.step_band_s
    slow = f"; one in ten takes over {prediction.step_p90_s:.3g}" if prediction.step_p90_s > prediction.step_s else ""
    then = f"; then {', '.join(shares[1:])}" if shares[1:] else ""
    mfu = ""
    if prediction.mfu_ratio:
        pace = f"{prediction.tokens_per_s_per_rank:,.3g} tokens/s a rank"
        mfu = f" MFU {prediction.mfu_ratio:.0%}, HFU {prediction.hfu_ratio:.0%}, {pace}."
    return (
        f"A step should take {prediction.step_s:.3g} s, or {low:.3g} to {high:.3g}{slow}. "
        f"What binds it: {shares[0]}{then}.{mfu}"
    )


def _memory(prediction: Prediction) -> str:
    terms = sorted(prediction.memory_breakdown_bytes.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name.replace('_', ' ')} {num_bytes / GIB:.2f}" for name, num_bytes in terms[:4])
    whose = f" ({prediction.fullest_rank})" if prediction.fullest_rank else ""
    setting = f" Set {prediction.allocator_settings}." if prediction.allocator_settings else ""
    return f"The fullest rank{whose} needs {prediction.memory_bytes_per_rank / GIB:.2f} GiB: {shown}.{setting}"


def _beyond_limits(budget: BudgetSpec, prediction: Prediction) -> str:
    """Say which limits the whole run breaks even if nothing goes wrong. It is stopped there."""
    broken = []
    if budget.deadline_s is not None and prediction.run_s > budget.deadline_s:
        broken.append(f"{_duration(prediction.run_s)} where budget.deadline is {_duration(budget.deadline_s)}")
    if budget.max_usd is not None and prediction.run_usd > budget.max_usd:
        broken.append(f"${prediction.run_usd:,.2f} where budget.max_usd is ${budget.max_usd:,.2f}")
    if not broken:
        return ""
    return f"The run does not keep its budget: it takes {' and '.join(broken)}. Raise the limit, or train on less."


def _run(prediction: Prediction) -> str:
    energy = "" if prediction.run_energy_j is None else f" and {prediction.run_energy_j / KWH_J:,.3g} kWh"
    unknown = f" Its energy is not known: {prediction.energy_unknown}." if prediction.energy_unknown else ""
    whole = (
        f"The whole run takes {_duration(prediction.run_s)}, ${prediction.run_usd:,.2f}{energy}, nothing going wrong."
        f"{unknown}"
    )
    if not prediction.phases:
        return whole
    fullest_bytes = max(phase.memory_bytes_per_rank for phase in prediction.phases)
    lines = [f"{whole} Its phases:"]
    for phase in prediction.phases:
        fullest = ", the most" * (phase.memory_bytes_per_rank == fullest_bytes)
        lines.append(
            f"  from {phase.from_tokens:,} tokens: {phase.num_sequences} x {phase.sequence_length_tokens} tokens a "
            f"step, {phase.num_steps:,} steps of {phase.step_s:.3g} s, "
            f"{phase.memory_bytes_per_rank / GIB:.2f} GiB{fullest}"
        )
    return "\n".join(lines)


def _duration(value_s: float) -> str:
    unit_s, unit = next((each for each in _UNITS if value_s >= 2 * each[0]), (1.0, "s"))
    return f"{value_s / unit_s:,.3g} {unit}"


def _one_change_away(best: Plan, plans: tuple[Plan, ...], around: Sequence[Neighbour]) -> str:
    lines = ["One thing changed at a time, on the same ranks and nodes:"]
    for name, group in groupby(around, key=lambda each: each.field):
        sentences = " ".join(_neighbour_sentence(best, plans, each) for each in group)
        lines.append(f"  {FIELDS[name]} stays at {_shown(getattr(best.layout, name))}. {sentences}")
    return "\n".join(lines)


def _neighbour_sentence(best: Plan, plans: tuple[Plan, ...], neighbour: Neighbour) -> str:
    names = [name for name in ("dp", "pp", "vp") if name != neighbour.field]
    moved = [name for name in names if getattr(neighbour.layout, name) != getattr(best.layout, name)]
    beside = ", ".join(f"{name}={getattr(neighbour.layout, name)}" for name in moved)
    where = f"At {_shown(neighbour.value)}" + (f" ({beside})" if beside else "")
    if neighbour.prediction is None:
        return f"{where}: {neighbour.obstacle}."
    if neighbour.missing_bytes:
        return f"{where} a rank needs {neighbour.missing_bytes / GIB:.1f} GiB more than it may use."
    rank = next((number for number, each in enumerate(plans, start=1) if each.layout == neighbour.layout), None)
    listed = f" (plan {rank})" if rank else ""
    return f"{where}{listed} {_step_difference(best.prediction, neighbour.prediction)}."


def _step_difference(one: Prediction, other: Prediction) -> str:
    """Say how much longer a step of ``other`` takes than one of ``one``, and what makes the difference."""
    beside = _memory_difference(one, other)
    ratio = other.step_s / one.step_s - 1 if one.step_s else 0.0
    if abs(ratio) < _SAME_RATIO:
        return f"a step takes as long, with {beside}"
    changes = term_changes_s(one.step_breakdown_s, other.step_breakdown_s)
    least_s = _TELLING_RATIO * (other.step_s - one.step_s)
    telling = [(name, change_s) for name, change_s in changes.items() if change_s / least_s >= 1][:_MAX_TERMS]
    because = ", ".join(f"{STEP_TERMS.get(name, name)} {change_s:+.3g} s" for name, change_s in telling)
    longer = "longer" if ratio > 0 else "less"
    return f"a step takes {_percent(abs(ratio))} {longer}, with {beside}: {because}"


def _memory_difference(one: Prediction, other: Prediction) -> str:
    difference_gib = round((other.memory_bytes_per_rank - one.memory_bytes_per_rank) / GIB, 1)
    if not difference_gib:
        return "as much memory"
    return f"{abs(difference_gib):.1f} GiB {'more' if difference_gib > 0 else 'less'} a rank"


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}" if ratio >= 0.1 else f"{ratio:.1%}"


def _shown(value: object) -> str:
    return value.value if isinstance(value, (Recompute, PipelineSchedule)) else str(value)


def _against_next(best: Plan, others: tuple[Plan, ...]) -> Iterator[str]:
    if not others or not best.prediction.step_s:
        return
    rival = others[0]
    same = rival.layout.world_size == best.layout.world_size
    on = "" if same else f" on {rival.layout.world_size} ranks"
    difference = _step_difference(best.prediction, rival.prediction)
    recompute = f" {rival.layout.describe_recompute()}"
    if rival.layout.describe_recompute() == best.layout.describe_recompute():
        recompute = ""
    yield f"The next by the objective is {rival.layout.describe()}{recompute}{on}: {difference}."


def _alternatives(best: Plan, others: tuple[Plan, ...]) -> Iterator[str]:
    """Name the plan that is best in each respect where the chosen one is not."""
    respects: tuple[tuple[str, Callable[[Plan], float], str], ...] = (
        ("Fastest", lambda plan: plan.prediction.step_s, "s/step"),
        ("Leanest", lambda plan: plan.prediction.memory_bytes_per_rank / GIB, "GiB/rank"),
        ("Cheapest", _usd_per_step, "USD/step"),
    )
    lines = []
    for word, cost, unit in respects:
        rival = min(others, key=cost, default=best)
        if cost(rival) < cost(best):
            lines.append(f"{word}: {rival.layout.describe()}, {cost(rival):.3g} against {cost(best):.3g} {unit}.")
    if lines:
        yield "It was preferred by the objective's weights to others that are better in one respect. " + " ".join(lines)


def _usd_per_step(plan: Plan) -> float:
    return plan.prediction.usd_per_hour * plan.prediction.step_s / 3600


def _turned_down(search: PlanSearch) -> str:
    reasons = list(search.rejections.items())
    lines = [f"  {number:>9,}  {reason}" for reason, number in reasons[:_MAX_REASONS]]
    rest = sum(number for _, number in reasons[_MAX_REASONS:])
    if rest:
        lines.append(f"  {rest:>9,}  other reasons")
    return f"Turned down, of {search.num_candidates:,} candidates:\n" + "\n".join(lines)
