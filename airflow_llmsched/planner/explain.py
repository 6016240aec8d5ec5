"""A plan search in words: what was chosen and why, what binds, what it was chosen over, what was turned down. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.plan import Plan, PlanSearch, Prediction
from airflow_llmsched.units import GIB

STEP_TERMS = {
    "compute": "matrix products and the memory traffic between them",
    "recompute": "computing activations again",
    "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "passing keys and values around",
    "expert_parallel": "sending tokens to their experts",
    "pipeline_bubble": "the pipeline's fill and drain",
    "pipeline_transfer": "sending activations between pipeline stages",
    "data_parallel": "gradient and weight traffic that compute does not hide",
    "optimizer": "the optimizer",
}
"""What a term of the step breakdown is, for readers."""

_MAX_REASONS = 8


def explain(search: PlanSearch) -> str:
    """Return a few short paragraphs, the same for the same search."""
    return "\n\n".join(_paragraphs(search))


def _paragraphs(search: PlanSearch) -> Iterator[str]:
    if not search.plans:
        yield f"No plan: none of {search.num_candidates:,} candidates can run."
        if search.relaxation:
            yield f"What would help: {search.relaxation}."
    else:
        best = search.plans[0]
        yield f"Chosen: {best.summary()}."
        yield " ".join(_layout_sentences(best.layout))
        yield _what_binds(best.prediction)
        yield _memory(best.prediction)
        yield from _alternatives(best, search.plans[1:])
    if search.rejections:
        yield _turned_down(search)


def _layout_sentences(layout: ParallelLayout) -> Iterator[str]:
    yield (
        f"Data parallelism: {layout.dp} x {layout.num_micro_batches} micro-batches of {layout.micro_batch_size}, "
        f"{layout.global_batch_size} sequences a step."
    )
    if layout.tp > 1:
        yield f"Each layer is split over {layout.tp} accelerators of one node, where links are fastest (tp)."
    if layout.pp > 1:
        yield f"The layers are split into {layout.pp} stages (pp)."
    if layout.cp > 1:
        yield f"Each sequence is split over {layout.cp} ranks (cp)."
    if layout.ep > 1:
        yield f"The experts are spread over {layout.ep} ranks (ep)."
    if layout.zero_stage:
        shared = ("optimizer state", "optimizer state and gradients", "optimizer state, gradients and weights")
        yield f"Replicas share out {shared[layout.zero_stage - 1]} (ZeRO {layout.zero_stage})."
    if layout.recompute is Recompute.SELECTIVE:
        yield "Attention scores are computed again instead of kept, as a fused attention kernel does."
    if layout.recompute is Recompute.FULL:
        yield "Every layer is computed again in the backward pass instead of kept."


def _what_binds(prediction: Prediction) -> str:
    if not prediction.step_s:
        return "Nothing is known of the time a step takes: the job states neither a model nor traffic."
    terms = sorted(prediction.step_breakdown_s.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{STEP_TERMS.get(name, name)} {seconds / prediction.step_s:.0%}" for name, seconds in terms[:3])
    low, high = (prediction.step_s * factor for factor in (1 - prediction.error_ratio, 1 + prediction.error_ratio))
    mfu = f" MFU {prediction.mfu_ratio:.0%}." if prediction.mfu_ratio else ""
    return (
        f"A step should take {prediction.step_s:.3g} s, or {low:.3g} to {high:.3g}, as the model is not calibrated. "
        f"It goes into {shown}.{mfu}"
    )


def _memory(prediction: Prediction) -> str:
    terms = sorted(prediction.memory_breakdown_bytes.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name.replace('_', ' ')} {num_bytes / GIB:.2f}" for name, num_bytes in terms[:4])
    return f"The fullest rank needs {prediction.memory_bytes_per_rank / GIB:.2f} GiB: {shown}."


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
