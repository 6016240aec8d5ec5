"""Saves and loads model and optimizer with ``torch.distributed.checkpoint``, on any number of ranks."""

from __future__ import annotations

import errno
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from airflow_llmsched.errors import DataError
from airflow_llmsched.trainers.folders import CheckpointFolders, TrainerState, damage, read_state

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when a disk, a quota or a file-size limit is full."""


def save(
    folders: CheckpointFolders,
    state: TrainerState,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    before_seal: Callable[[], None],
) -> None:
    """Write one checkpoint. Every rank calls it; on return it is durable and visible, or the call has raised.

    Raises:
        DataError: storage is full or failed; checkpoints from before are untouched.
    """
    is_first = dist.get_rank() == 0
    target = folders.finished(state.step)
    with _failures_named(f"cannot save checkpoint {target}"):
        if is_first:
            folders.prepare(state.step)
        dist.barrier()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        save_state({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folders.unfinished(state.step))
        if is_first:
            before_seal()
            folders.publish(state, world_size=dist.get_world_size())
        dist.barrier()


def load(path: str, *, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainerState:
    """Load a checkpoint saved on any number of ranks. Every rank calls it and verifies its share of the bytes.

    Raises:
        DataError: the checkpoint is damaged, unfinished, or not of this model.
    """
    refuse_damage(path)
    with _failures_named(f"cannot load checkpoint {path}"):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        load_state({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    return read_state(path)


def load_model(path: str, *, model: nn.Module) -> None:
    """Load only the weights: every rank calls it, or one process without a process group.

    Raises:
        DataError: as :func:`load` does.
    """
    refuse_damage(path)
    with _failures_named(f"cannot load checkpoint {path}"):
        model_state = get_model_state_dict(model)
        load_state({"model": model_state}, checkpoint_id=path, no_dist=not dist.is_initialized())
        set_model_state_dict(model, model_state)


def refuse_damage(path: str) -> None:
    """Raise ``DataError`` unless the checkpoint, or this rank's part of it, is as it was sealed."""
    part, num_parts = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    with _failures_named(f"cannot read checkpoint {path}"):
        problem = damage(path, part=part, num_parts=num_parts)
    if problem:
        raise DataError(f"checkpoint {path} is damaged: {problem}; take another checkpoint")


@contextmanager
def _failures_named(what: str) -> Iterator[None]:
    """Turn failures of storage into one line that starts with ``what``."""
    try:
        yield
    except DataError:
        raise
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Dig the cause out of torch's collection of failures by rank, and say what to do about it."""
    if isinstance(error, CheckpointException):
        rank, (cause, _) = min(error.failures.items())
        return f"rank {rank}: {_reason(cause)}"
    links = list(_chain(error))
    full = [link for link in links if isinstance(link, OSError) and link.errno in FULL_DISK]
    if full:
        return f"{full[0].strerror}; free space there or keep fewer checkpoints, then resume"
    first_line = str(links[-1]).strip().partition("\n")[0]
    return f"{type(links[-1]).__name__}: {first_line}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def quiet_torch() -> None:
    """Drop torch's warnings about itself, which would bury the trainer's messages in the log."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\..*")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
