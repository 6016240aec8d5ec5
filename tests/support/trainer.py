"""A small model, a small dataset and ways to train on them, alone in this process or as real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import api, wire
from airflow_llmsched.domain.workload import DatasetKind, DatasetSpec
from airflow_llmsched.staging.shards import stage
from airflow_llmsched.trainers.faults import INJECT_VARIABLE
from airflow_llmsched.trainers.settings import (
    DATASET_VARIABLE,
    TRAIN_VARIABLE,
    LearningRateSchedule,
    TrainSettings,
)

TRAINER_MODULE = "airflow_llmsched.trainers.byte_gpt"


def small_settings(**changes: Any) -> TrainSettings:
    """Settings of a model of about 10,000 parameters that trains a step in milliseconds."""
    values: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 2,
        "ffn_hidden_size": 48,
        "sequence_length_tokens": 16,
        "num_sequences": 8,
        "micro_batch_size": 2,
        "num_steps": 6,
        "warmup_steps": 2,
        "learning_rate": 0.01,
        "schedule": LearningRateSchedule.CONSTANT,
        "checkpoint_interval_steps": 3,
    }
    return TrainSettings(**(values | changes))


def small_dataset(folder: Path) -> str:
    """Stage some 10 KiB of text below ``folder``; return the path of its manifest."""
    source = folder / "text"
    source.mkdir()
    for index in range(10):
        (source / f"{index}.txt").write_text(f"line {index} of a text that says {index * index}\n" * 30)
    spec = DatasetSpec(kind=DatasetKind.FILES, source=str(source), shard_bytes=3000, held_out_ratio=0.2)
    stage(spec, destination=str(folder / "data"))
    return str(folder / "data" / "manifest.json")


def rank_environment(
    settings: TrainSettings | None,
    *,
    dataset: str,
    root: Path | None = None,
    spool: Path | None = None,
    resume_from: Path | str | None = None,
    init_from: Path | str | None = None,
    inject: object = None,
    attempt: int = 1,
) -> dict[str, str]:
    """Return what the engine and control would set for the shipped trainer."""
    values = {
        TRAIN_VARIABLE: settings.to_json() if settings else None,
        DATASET_VARIABLE: dataset,
        wire.CHECKPOINT_ROOT: str(root) if root else None,
        wire.SPOOL: str(spool) if spool else None,
        wire.RESUME_FROM: str(resume_from) if resume_from else None,
        wire.INIT_FROM: str(init_from) if init_from else None,
        wire.ATTEMPT: str(attempt),
        wire.GENERATION: "1",
        INJECT_VARIABLE: json.dumps(inject) if inject else None,
    }
    if spool:
        spool.mkdir(parents=True, exist_ok=True)
    return {name: value for name, value in values.items() if value is not None}


def train_here(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> int:
    """Train as a lone rank in this process; return the trainer's exit code."""
    import torch

    from airflow_llmsched.trainers import byte_gpt

    torch.set_num_threads(1)  # as torchrun does; a small model on more threads only waits for them
    monkeypatch.setattr(api, "_state", None)
    with monkeypatch.context() as context:
        for name in [name for name in os.environ if name.startswith("LLMSCHED_")]:
            context.delenv(name)
        for name, value in environment.items():
            context.setenv(name, value)
        return byte_gpt.main()


def train_ranks(
    num_ranks: int, environment: dict[str, str], *, log_dir: Path, limit_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Train as ``num_ranks`` real ranks under torchrun; their output goes to :func:`rank_log`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command += [f"--log-dir={log_dir}", "--redirects=3", "-m", TRAINER_MODULE]
    return subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )


def rank_log(log_dir: Path, rank: int) -> str:
    """Return what one rank wrote to stderr under :func:`train_ranks`."""
    (path,) = log_dir.glob(f"*/attempt_0/{rank}/stderr.log")
    return path.read_text()


def records(spool: Path, *, rank: int = 0) -> list[dict[str, Any]]:
    """Return what a rank reported through the agent."""
    return [json.loads(line) for line in (spool / wire.rank_spool_name(rank)).read_text().splitlines()]


def losses(spool: Path) -> dict[int, float]:
    """Return the reported loss of every step."""
    return {record["step"]: record["loss"] for record in records(spool) if record["kind"] == "step"}


def marks(spool: Path) -> list[int]:
    """Return the steps whose checkpoints were reported durable, in order."""
    return [record["step"] for record in records(spool) if record["kind"] == "mark"]
