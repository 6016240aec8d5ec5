"""Checkpoint directories of one run: where a save is written, how it becomes visible at once, what is kept.

A save is written under a hidden name of its own attempt, sealed, then renamed to ``step-<8 digits>``. So a visible
checkpoint is whole, and two attempts never write into one directory, even where they share a folder. Knows files only,
no tensors.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmsched.agent.retention import discard, prune
from airflow_llmsched.agent.seal import SealError, check, read_seal, seal
from airflow_llmsched.errors import DataError

STATE_NAME = "trainer.json"
"""File in a checkpoint that says what was trained and how far: :class:`TrainerState`."""

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Where training stands. ``settings`` is the plain form of the trainer's settings."""

    step: int
    num_tokens_seen: int
    dataset_digest: str
    settings: dict[str, Any]


class CheckpointFolders:
    """The checkpoints in ``root``, where one attempt of one generation saves. Only rank 0 calls what writes."""

    def __init__(self, root: str, *, generation: int, attempt: int, keep_last: int, resumed_from: str | None) -> None:
        self.root = Path(root)
        self._age = (generation, attempt)
        self._keep_last = keep_last
        self._resumed_from = resumed_from

    def claim(self) -> None:
        """Make the folder. From now on an earlier attempt that lives on unseen knows that it is over."""
        self.root.mkdir(parents=True, exist_ok=True)

    def finished(self, step: int) -> Path:
        """Return the path of the finished checkpoint of ``step``."""
        return self.root / f"step-{step:08d}"

    def unfinished(self, step: int) -> Path:
        """Return the path to write the checkpoint of ``step`` to, before it is published."""
        generation, attempt = self._age
        return self.root / f".saving-step-{step:08d}-g{generation}-a{attempt}"

    def prepare(self, step: int) -> None:
        """Make an empty directory at :meth:`unfinished`."""
        path = self.unfinished(step)
        discard(path)
        path.mkdir(parents=True)

    def publish(self, state: TrainerState, *, world_size: int) -> None:
        """Seal what all ranks have written for ``state.step`` and make it visible, whole.

        A sound checkpoint of the same step stays as it is and the new one, its equal, is dropped; a damaged or torn
        one is replaced.
        """
        source, target = self.unfinished(state.step), self.finished(state.step)
        plain = {"v": _VERSION} | dataclasses.asdict(state)
        (source / STATE_NAME).write_text(json.dumps(plain, indent=1, sort_keys=True))
        seal(source, step=state.step, world_size=world_size)
        if target.exists():
            if damage(target) is None:
                discard(source)
                return
            discard(target)
        source.rename(target)
        _sync_folder(self.root)

    def prune(self, *, saved_step: int) -> None:
        """Delete what the run can do without, now that ``saved_step`` is saved: see :mod:`agent.retention`."""
        prune(
            self.root,
            attempt=self._age,
            keep_last=self._keep_last,
            saved_step=saved_step,
            resumed_from=self._resumed_from,
            now_s=time.time(),
        )


def damage(path: str | os.PathLike[str], *, part: int = 0, num_parts: int = 1) -> str | None:
    """Return what is wrong with a checkpoint, or None. Reads all of it, or as one of ``num_parts`` readers a share."""
    try:
        found = read_seal(path)
    except SealError as error:
        return str(error)
    except NotADirectoryError:
        return "it is not a directory"
    if found is None:
        return "it has no seal, so it was never finished" if Path(path).is_dir() else "there is no such directory"
    return check(path, dataclasses.replace(found, files=found.files[part::num_parts]), depth="content")


def read_state(path: str | os.PathLike[str]) -> TrainerState:
    """Read how far the checkpoint at ``path`` is. Raises ``DataError`` when it is not one of this trainer's."""
    try:
        plain = json.loads((Path(path) / STATE_NAME).read_bytes())
        version = plain.pop("v")
        state = TrainerState(**plain)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"checkpoint {path} was not saved by this trainer: {STATE_NAME} cannot be read ({error})"
        raise DataError(message) from None
    if version != _VERSION:
        raise DataError(f"checkpoint {path} has {STATE_NAME} of version {version!r}, this trainer knows {_VERSION}")
    return state


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
