"""Holds: marks beside a run's checkpoints by which a reader keeps one from being deleted under it.

A hold is a small file ``<checkpoint root>/.held/<name>.json``. It ends by itself, so that a reader that died holds
nothing for ever.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from airflow_llmsched.agent import wire

HOLDS = ".held"
CLOCK_SKEW_S = 60.0
"""By how much the clocks of whoever holds and whoever deletes may differ."""


def root_of(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the checkpoint root that ``checkpoint`` lies below, itself or in the folder of an attempt."""
    folder = Path(checkpoint).parent
    return folder if wire.attempt_of_folder(folder.name) is None else folder.parent


def hold(checkpoint: str | os.PathLike[str], *, name: str, until_s: float) -> None:
    """Keep ``checkpoint`` from being deleted until ``until_s`` (Unix seconds). An older hold of the name is replaced.

    Does nothing when there is no such checkpoint. Raises ``OSError`` when the mark cannot be written.
    """
    if not Path(checkpoint).is_dir():
        return
    folder = root_of(checkpoint) / HOLDS
    folder.mkdir(exist_ok=True)
    path = Path(checkpoint).absolute().relative_to(root_of(Path(checkpoint).absolute()))
    temp = folder / f".{name}.{uuid.uuid4().hex}"
    temp.write_text(json.dumps({"v": 1, "path": path.as_posix(), "until_s": until_s}))
    temp.replace(folder / f"{name}.json")


def release(checkpoint: str | os.PathLike[str], *, name: str) -> None:
    """End the hold ``name`` on ``checkpoint``; silent when there is none. Raises ``OSError``."""
    (root_of(checkpoint) / HOLDS / f"{name}.json").unlink(missing_ok=True)


def held(root: str | os.PathLike[str], *, now_s: float) -> frozenset[Path]:
    """Return the checkpoints below ``root`` that someone holds. A mark that says nothing holds nothing.

    Raises ``OSError`` when the marks cannot be read: then any checkpoint may be held.
    """
    folder = Path(root) / HOLDS
    try:
        marks = [path for path in folder.iterdir() if path.suffix == ".json"]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    found = (_held_by(mark, now_s=now_s) for mark in marks)
    return frozenset((Path(root) / path).resolve() for path in found if path)


def _held_by(mark: Path, *, now_s: float) -> str | None:
    try:
        plain = json.loads(mark.read_bytes())
        return str(plain["path"]) if float(plain["until_s"]) + CLOCK_SKEW_S > now_s else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None
