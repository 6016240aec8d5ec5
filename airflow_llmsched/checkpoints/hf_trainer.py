"""Checkpoints of the Hugging Face Trainer: ``checkpoint-N`` with weights, optimizer, scheduler and, last, its state."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from airflow_llmsched.agent.seal import SEAL_NAME
from airflow_llmsched.checkpoints.dcp_directory import manifest_digest
from airflow_llmsched.checkpoints.hf_deepspeed import deepspeed_state
from airflow_llmsched.checkpoints.hf_parts import STATE_NAME, check_parts, read_state
from airflow_llmsched.checkpoints.hf_ranks import check_rank_files, rank_groups, saved_world_size
from airflow_llmsched.checkpoints.inspection import Inventory, check_seal, modified_at_s
from airflow_llmsched.checkpoints.scan import check_rank_markers, file_sizes, seal_of
from airflow_llmsched.checkpoints.step_format import StepFormat
from airflow_llmsched.domain.checkpoint import Compatibility, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout

_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer_0/")
_SCHEDULER = "scheduler.pt"


class HfTrainerFormat(StepFormat):
    """Complete when ``trainer_state.json`` is there and whole, and so is everything that its other files promise."""

    name = "hf_trainer"
    step_name = re.compile(r"checkpoint-([0-9]{1,18})")

    def take_stock(self, directory: Path, step: int, depth: VerifyDepth) -> Inventory:
        """Without a seal, sizes come from the files' own headers and content from torch's CRC-32."""
        names = file_sizes(directory)
        state = read_state(directory, names, step)
        seal = seal_of(directory) if SEAL_NAME in names else None
        if seal is not None:
            check_seal(directory, seal, step=step, depth=depth)
        deepspeed = deepspeed_state(directory, names)
        groups = rank_groups(names, deepspeed)
        check_rank_files(groups)
        world_size = saved_world_size(groups, names)
        check_rank_markers(names, range(world_size or 0))
        sizes = check_parts(directory, names, deepspeed, depth=depth)
        if seal is not None:
            return Inventory.of_seal(seal)
        return Inventory(
            digest=manifest_digest(sizes, {STATE_NAME: hashlib.sha256(state).hexdigest()}),
            num_bytes=sum(sizes.values()),
            world_size=world_size,
            saved_at_s=modified_at_s(directory, STATE_NAME),
        )

    def compatibility(self, directory: Path, *, layout: ParallelLayout) -> Compatibility:
        """Refuse a checkpoint without optimizer or scheduler, and optimizer state that was cut for other ranks."""
        names = file_sizes(directory)
        groups = rank_groups(names, deepspeed_state(directory, names))
        missing = _missing_for_resume(set(names), sharded=any(group.holds_optimizer for group in groups))
        if missing:
            return Compatibility(ok=False, reason=missing)
        for group in groups:
            problem = group.problem_under(layout)
            if problem:
                return Compatibility(ok=False, reason=problem)
        return Compatibility(ok=True, reason="optimizer and scheduler are there and load under any number of ranks")


def _missing_for_resume(names: set[str], *, sharded: bool) -> str | None:
    if not sharded and names.isdisjoint(_OPTIMIZERS):
        return "it holds no optimizer state (saved with save_only_model): the optimizer would silently start afresh"
    if not sharded and _SCHEDULER not in names:
        return f"{_SCHEDULER} is missing: the learning rate would silently start afresh"
    return None
