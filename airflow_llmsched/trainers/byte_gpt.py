"""The shipped trainer: ``torchrun -m airflow_llmsched.trainers.byte_gpt``, one process per rank, on CPUs over gloo.

It is told what to do by its environment: ``LLMSCHED_TRAIN`` (settings), ``LLMSCHED_DATASET`` (manifest),
``LLMSCHED_CHECKPOINT_ROOT`` (where to save; unset: nowhere), ``LLMSCHED_RESUME_FROM`` (checkpoint to go on from;
unset: from the start), ``LLMSCHED_INIT_FROM`` (checkpoint whose weights to start with; unset: random ones) and, in
tests, ``LLMSCHED_INJECT``. Parameters, gradients and optimizer state are sharded over all ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from airflow_llmsched import agent
from airflow_llmsched.agent import wire
from airflow_llmsched.errors import DataError, LlmschedError, SpecError
from airflow_llmsched.trainers.checkpointing import quiet_torch
from airflow_llmsched.trainers.data import TokenStream, read_manifest
from airflow_llmsched.trainers.faults import Faults
from airflow_llmsched.trainers.folders import CheckpointFolders
from airflow_llmsched.trainers.loop import Trainer, refuse_uneven_share
from airflow_llmsched.trainers.model import ByteGpt
from airflow_llmsched.trainers.settings import DATASET_VARIABLE, TRAIN_VARIABLE, TrainSettings
from airflow_llmsched.units import MIB

_SINGLE_GROUP_BYTES = 64 * MIB
"""Models up to this size are gathered in one piece: more collectives would cost more time than they save memory."""

_ADAM_BETAS = (0.9, 0.95)


def main() -> int:
    """Train as the environment says. Return the exit code: 0, or 1 after one line on stderr that says what failed."""
    agent.heartbeat()  # from here on silence means a hang, in the rendezvous too
    quiet_torch()
    try:
        _train(os.environ)
    except LlmschedError as error:
        return _failed(str(error))
    except RuntimeError as error:
        if "gloo" not in str(error).lower():
            raise
        return _failed(f"lost contact with another rank, whose log says why ({str(error).strip().splitlines()[0]})")
    return 0


def _train(environment: Mapping[str, str]) -> None:
    settings = TrainSettings.from_json(_required(environment, TRAIN_VARIABLE))
    files = read_manifest(_required(environment, DATASET_VARIABLE))
    stream = TokenStream(files.train, window_tokens=settings.window_tokens, seed=settings.seed)
    layout = agent.layout()
    refuse_model_parallelism(layout.degrees)
    refuse_uneven_share(settings, num_ranks=layout.world_size)
    # Outside a gang there is no attempt; a lone run counts as the first.
    attempt = max(1, layout.attempt)
    faults = Faults.from_environment(environment, rank=layout.rank, attempt=attempt)
    faults.before_rendezvous()
    _join(environment)
    try:
        folders = _folders(environment, layout, attempt=attempt, keep_last=settings.keep_last)
        model = shard(ByteGpt(settings), gather_twice=layout.degrees.get("zero_stage", 0) == 3)
        trainer = Trainer(
            settings=settings,
            model=model,
            optimizer=make_optimizer(model, settings),
            stream=stream,
            dataset_digest=files.digest,
            folders=folders,
            faults=faults,
        )
        if layout.resume_from is not None:
            trainer.resume(layout.resume_from)
        elif layout.init_from is not None:
            trainer.start_with(layout.init_from)
        trainer.run()
    finally:
        dist.destroy_process_group()


def _folders(
    environment: Mapping[str, str], layout: agent.RankLayout, *, attempt: int, keep_last: int
) -> CheckpointFolders | None:
    if layout.checkpoint_root is None:
        return None
    folders = CheckpointFolders(
        layout.checkpoint_root,
        generation=int(environment.get(wire.GENERATION) or 1),
        attempt=attempt,
        keep_last=keep_last,
        resumed_from=layout.resume_from,
    )
    if layout.rank == 0:
        try:
            folders.claim()
        except OSError as error:
            message = (
                f"cannot make {layout.checkpoint_root}, to save in: {error.strerror}; make it writable, then resume"
            )
            raise DataError(message) from error
    return folders


def refuse_model_parallelism(degrees: Mapping[str, int]) -> None:
    """Raise ``SpecError`` for a layout that splits more than the data: this trainer knows no other split."""
    for name in ("tp", "pp", "cp", "ep"):
        if degrees.get(name, 1) > 1:
            raise SpecError(
                path=f"parallelism.{name}", value=degrees[name], hint="must be 1: byte_gpt splits only data"
            )


def shard(model: nn.Module, *, gather_twice: bool) -> nn.Module:
    """Shard the model over all ranks. ``gather_twice`` frees parameters between forward and backward (ZeRO stage 3).

    Layouts of lower stages run as stage 2 here, which needs no more memory than they plan for.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if num_bytes > _SINGLE_GROUP_BYTES:
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh, reshard_after_forward=gather_twice)
    fully_shard(model, mesh=mesh, reshard_after_forward=gather_twice)
    return model


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return AdamW that decays matrices only, not the gains of norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    gains = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=_ADAM_BETAS)


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SpecError(path=name, hint="must be set in the environment; see airflow_llmsched.trainers.byte_gpt")
    return value


def _join(environment: Mapping[str, str]) -> None:
    """Meet the other ranks. A process that no launcher started is a gang of its own."""
    if "RANK" in environment:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


def _failed(message: str) -> int:
    sys.stderr.write(f"llmsched trainer: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
