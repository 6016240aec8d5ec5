"""Batch phases by tokens seen, from the batch block."""

from __future__ import annotations

from airflow_llmsched.domain.workload import BatchPhase
from airflow_llmsched.specs import quantities
from airflow_llmsched.specs.problems import Problem
from airflow_llmsched.specs.schema import BatchBlock
from airflow_llmsched.specs.tree import Path


def to_phases(block: BatchBlock) -> tuple[tuple[BatchPhase, ...], list[Problem]]:
    """Return the phases, in order, and what is wrong with them (then the phases are not to be used)."""
    phases: list[BatchPhase] = []
    problems: list[Problem] = []
    rows = [(phase.from_, phase.sequence_length, phase.global_batch) for phase in block.schedule] or [(0, None, None)]
    length, batch = block.sequence_length, block.global_batch
    last = -1
    for index, (from_tokens, new_length, new_batch) in enumerate(rows):
        path: Path = ("batch", "schedule", index) if block.schedule else ("batch",)
        length, batch = new_length or length, new_batch or batch
        problems += _order_problems(index, from_tokens, last, (*path, "from"))
        last = from_tokens
        missing = [name for name, value in (("sequence_length", length), ("global_batch", batch)) if value is None]
        problems += [
            Problem(path=(*path, name), hint="is required: no phase before this one gives it") for name in missing
        ]
        if length is None or batch is None:
            continue
        try:
            num_sequences = _to_sequences(batch, length)
        except ValueError as error:
            problems.append(Problem(path=(*path, "global_batch"), value=batch, hint=str(error)))
            continue
        phases.append(BatchPhase(from_tokens=from_tokens, sequence_length_tokens=length, num_sequences=num_sequences))
    return tuple(phases), problems


def _order_problems(index: int, from_tokens: int, last: int, path: Path) -> list[Problem]:
    shown = quantities.format_tokens(from_tokens)
    if index == 0 and from_tokens != 0:
        return [Problem(path=path, value=shown, hint="must be 0: the first phase starts with the run")]
    if from_tokens <= last:
        hint = f"must be after the phase before it, which starts at {quantities.format_tokens(last)}"
        return [Problem(path=path, value=shown, hint=hint)]
    return []


def _to_sequences(batch: str, sequence_length_tokens: int) -> int:
    if "seq" in batch:
        return quantities.parse_sequences(batch)
    num_tokens = quantities.parse_tokens(batch)
    if num_tokens % sequence_length_tokens:
        hint = f"must be whole sequences of {sequence_length_tokens} tokens; nearest: "
        below = num_tokens // sequence_length_tokens
        raise ValueError(hint + " and ".join(quantities.format_sequences(each) for each in (below, below + 1) if each))
    return num_tokens // sequence_length_tokens
