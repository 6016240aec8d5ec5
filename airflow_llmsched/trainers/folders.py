"""Checkpoint directories of one run: where a save is written, how it becomes visible at once, what is kept.

A save is written under a hidden name of its own attempt, sealed, then renamed to ``step-<8 digits>``. So a visible
checkpoint is whole, and two attempts never write into one directory. Knows files only, no tensors.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmsched.agent.seal import SealError, check, read_seal, seal
from airflow_llmsched.errors import DataError

STATE_NAME = "trainer.json"
"""File in a checkpoint that says what was trained and how far: :class:`TrainerState`."""

_VERSION = 1
_FINISHED = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"\.saving-step-\d{8,}-g(\d+)-a(\d+)")
_DISCARDED = ".discarded-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Where training stands. ``settings`` is the plain form of the trainer's settings."""

    step: int
    num_tokens_seen: int
    dataset_digest: str
    settings: dict[str, Any]


class CheckpointFolders:
    """The checkpoints below ``root``, as one attempt of one generation sees them. Only rank 0 calls what writes."""

    def __init__(self, root: str, *, generation: int, attempt: int, keep_last: int, resumed_from: str | None) -> None:
        self.root = Path(root)
        self._age = (generation, attempt)
        self._keep_last = keep_last
        self._resumed_from = Path(resumed_from).resolve() if resumed_from else None

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
        self._discard(path)
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
                self._discard(source)
                return
            self._discard(target)
        source.rename(target)
        _sync_folder(self.root)

    def prune(self, *, saved_step: int) -> None:
        """Delete sealed checkpoints beyond the newest ``keep_last`` up to ``saved_step``, never the one resumed from.

        What lies above the step just saved was passed over when this attempt resumed, so it is damaged: it must not
        crowd out what is sound. It stays until training gets there and replaces it.
        What older attempts left half-written goes too; they are over, since only one attempt of a run lives at a time.
        """
        sealed = sorted((step, path) for step, path in self._steps() if step <= saved_step and _is_sealed(path))
        for _, path in sealed[: -self._keep_last]:
            if path.resolve() != self._resumed_from:
                self._discard(path)
        for path in self.root.iterdir():
            unfinished = _UNFINISHED.fullmatch(path.name)
            if unfinished and (int(unfinished[1]), int(unfinished[2])) < self._age:
                self._discard(path)
            elif path.name.startswith(_DISCARDED):
                shutil.rmtree(path, ignore_errors=True)

    def _steps(self) -> list[tuple[int, Path]]:
        found = ((_FINISHED.fullmatch(path.name), path) for path in self.root.iterdir())
        return [(int(match[1]), path) for match, path in found if match]

    def _discard(self, path: Path) -> None:
        """Take ``path`` out of sight first: a deletion that is cut short must not leave a half checkpoint behind."""
        if path.exists():
            hidden = self.root / f"{_DISCARDED}{uuid.uuid4().hex}"
            path.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


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


def _is_sealed(path: Path) -> bool:
    try:
        return read_seal(path) is not None
    except (SealError, OSError):
        return False  # what cannot be read is neither counted nor deleted


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
