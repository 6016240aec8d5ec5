"""``llmsched schema`` and ``llmsched check``: what a spec may say, and whether this one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.domain.workload import BatchPhase, BudgetSpec, WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.flops import flops_per_token
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.planner.perf.kv_cache import kv_cache_bytes_per_token
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs import fleet_reference, json_schema, loader, reference, topology_reference
from airflow_llmsched.specs.quantities import (
    format_duration_s,
    format_ratio,
    format_sequences,
    format_tokens,
    format_usd,
)
from airflow_llmsched.specs.support import unsupported

EXIT_BAD_SPEC = 1


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page instead.")] = False,
    of_fleet: Annotated[bool, typer.Option("--fleet", help="Of fleet files instead.")] = False,
    of_topology: Annotated[bool, typer.Option("--topology", help="Of topology files instead.")] = False,
) -> None:
    """Print the JSON Schema of specs, or of fleet or topology files, for editors."""
    if of_fleet and of_topology:
        raise typer.BadParameter("are two pages: ask for one of them", param_hint="--fleet, --topology")
    if markdown:
        page = topology_reference if of_topology else fleet_reference if of_fleet else reference
        typer.echo(page.markdown(), nl=False)
        return
    kind = topology_reference if of_topology else fleet_reference if of_fleet else json_schema
    typer.echo(json.dumps(kind.json_schema(), indent=2))


def check(
    spec: Annotated[Path, typer.Argument(help="A workload spec in YAML.", show_default=False)],
) -> None:
    """Read SPEC and list every mistake with its line, or say in short what it asks for."""
    try:
        workload = loader.load(spec)
    except SpecError as error:
        for each in error.errors:
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_SPEC) from None
    Console().print(_summary(workload))
    for each in unsupported(workload):
        typer.echo(f"warning: this release refuses to run it: {each}", err=True)


def _summary(workload: WorkloadSpec) -> Table:
    table = Table(title=Text(workload.name), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in _rows(workload):
        # Text, not str: square brackets in a name are the user's, not markup
        table.add_row(label, Text(text))
    return table


def _rows(workload: WorkloadSpec) -> list[tuple[str, str]]:
    rows = [("stage", workload.stage.value), ("model", _model(workload)), *_per_token(workload)]
    rows += [("batch" if index == 0 else "", _phase(phase)) for index, phase in enumerate(workload.batch)]
    rows += [("budget", _budget(workload.budget)), ("ranks", _ranks(workload))]
    data = workload.data
    held_out = f"{format_ratio(data.held_out_ratio)} held out"
    rows.append(("data", ", ".join(part for part in (data.kind.value, data.source, held_out) if part)))
    if workload.queue is not None:
        rows.append(("queue", _queue(workload.queue)))
    gate = workload.evaluation.max_loss if workload.evaluation else None
    rows.append(("gate", "none" if gate is None else f"held-out loss at most {gate:g}"))
    return rows


def _model(workload: WorkloadSpec) -> str:
    if workload.model is None:
        return "none: the job states its own traffic and memory"
    count = count_parameters(workload.model)
    looked_up = count.active - count.active_without_input_embedding
    active = f", {count.active:,} active per token" if count.active != count.total else ""
    active += f" ({count.active_without_input_embedding:,} without the input embedding)" if active and looked_up else ""
    job = job_of(workload)
    trained = job.num_trained_parameters if job else count.total
    trains = f", {trained:,} trained" if trained != count.total else ""
    return f"{workload.model.name}: {count.total:,} parameters{active}{trains}"


def _per_token(workload: WorkloadSpec) -> list[tuple[str, str]]:
    """What one token of the longest sequences takes, by the conventions of MFU."""
    job = job_of(workload)
    if job is None:
        return []
    flops = flops_per_token(job.model, sequence_length_tokens=job.sequence_length_tokens)
    kept_bytes = kv_cache_bytes_per_token(job.model, bytes_per_value=job.compute_bytes)
    passes = f"{flops.forward_flop / 1e9:,.4g} GFLOP forward"
    if job.lora_rank is None:
        passes += f", {flops.backward_flop / 1e9:,.4g} backward"
    share = f"{flops.scores_flop / flops.forward_flop:.0%} of it attention scores"
    if job.lora_rank is None:
        share += f" (both passes without them, the 6 N of some MFU: {flops.training_without_scores_flop / 1e9:,.4g})"
    return [("per token", f"{passes}, {share}; {kept_bytes:,} bytes of keys and values")]


def _phase(phase: BatchPhase) -> str:
    return (
        f"from {format_tokens(phase.from_tokens)}: {format_sequences(phase.num_sequences)} of "
        f"{format_tokens(phase.sequence_length_tokens)}, {format_tokens(phase.tokens_per_step)} a step"
    )


def _budget(budget: BudgetSpec) -> str:
    parts = [f"{budget.num_steps} steps" if budget.num_tokens is None else format_tokens(budget.num_tokens)]
    if budget.deadline_s is not None:
        parts.append(f"within {format_duration_s(budget.deadline_s)}")
    if budget.max_usd is not None:
        parts.append(f"for at most {format_usd(budget.max_usd)}")
    return ", ".join(parts)


def _queue(wish: QueueWish) -> str:
    waits = "" if wish.max_wait_s is None else f", waits for at most {format_duration_s(wish.max_wait_s)}"
    return f"team {wish.team}, class {wish.priority}{waits}"


def _ranks(workload: WorkloadSpec) -> str:
    wish, capacity = workload.parallelism, workload.capacity
    most = "any number" if capacity.max_ranks is None else str(capacity.max_ranks)
    names = ("dp", "tp", "pp", "vp", "cp", "ep", "expert_tp", "schedule", "shard_size", "offload")
    pinned = [f"{name}={value}" for name in names if (value := getattr(wish, name)) is not None]
    return f"{capacity.min_ranks} to {most}; pinned: {', '.join(pinned) or 'nothing'}"
