"""Which checkpoints of a run may be deleted, by the attempt that has just saved one. Counts across attempts.

Deleted is only what the run can do without: beyond the newest ``keep_last`` sealed ones of its line, not counting
those that someone holds (``agent.holds``), and what earlier attempts have above the checkpoint that this one resumed
from, once training has got there again. Never deleted is what this attempt resumed from, what someone holds, and, as
the step just saved counts or is held, the only sound one. An attempt that sees the folder of a later one has been
taken for dead, and deletes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.holds import held
from airflow_llmsched.agent.seal import SealError, read_seal

_STEP = re.compile(r"(?:step[-_]?|checkpoint-)([0-9]{1,18})")
_SAVING = re.compile(r"\.saving-.+-g([0-9]+)-a([0-9]+)")
_DISCARDED = ".discarded-"
_NOBODY = (0, 0)
"""Age of what lies in the root itself, older than any attempt's own folder."""


class _Saved(NamedTuple):
    step: int
    age: tuple[int, int]
    path: Path


def prune(
    folder: str | os.PathLike[str],
    *,
    attempt: tuple[int, int],
    keep_last: int,
    saved_step: int,
    resumed_from: str | os.PathLike[str] | None,
    now_s: float,
) -> tuple[Path, ...]:
    """Delete what ``attempt`` (generation, number), which saves in ``folder``, can do without; return what went.

    ``saved_step`` is the step just saved: what lies above it in ``folder`` was passed over when the attempt resumed,
    and must not crowd out what is sound. ``now_s`` is Unix seconds.

    Raises:
        ValueError: ``keep_last`` is below 1.
        OSError: storage failed.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}: the newest checkpoint has to stay, so it must be at least 1")
    own = Path(folder)
    root = own.parent if wire.attempt_of_folder(own.name) == attempt else own
    folders = _folders_of_attempts(root)
    resumed_step = _step_of(resumed_from)
    if resumed_step is None or any(age > attempt for age in folders):
        return ()
    folders = {_NOBODY: root, **folders}
    saved = [found for age, path in folders.items() for found in _steps_in(path, age)]
    line = [each for each in saved if each.step <= (saved_step if each.path.parent == own else resumed_step)]
    being_read = held(root, now_s=now_s)
    # What is held is not counted: a later attempt may have gone on from below it, and then it would stand for one that
    # the run can go on from.
    sealed = sorted(each for each in line if each.path.resolve() not in being_read and _is_sealed(each.path))
    given_up = [each for each in saved if each.age not in (_NOBODY, attempt) and resumed_step < each.step <= saved_step]
    spared = {*being_read, *([Path(resumed_from).resolve()] if resumed_from else [])}
    gone = [each.path for each in (*sealed[:-keep_last], *given_up) if each.path.resolve() not in spared]
    for path in gone:
        discard(path)
    for age, path in folders.items():
        _sweep(path, attempt, is_over=age not in (_NOBODY, attempt))
    return tuple(gone)


def discard(path: Path) -> None:
    """Delete a folder, out of sight first: a deletion that is cut short must not leave a half checkpoint behind."""
    hidden = path.parent / f"{_DISCARDED}{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):  # another attempt of the run deletes, too
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _folders_of_attempts(root: Path) -> dict[tuple[int, int], Path]:
    found = ((wire.attempt_of_folder(path.name), path) for path in root.iterdir() if path.is_dir())
    return {age: path for age, path in found if age is not None}


def _step_of(resumed_from: str | os.PathLike[str] | None) -> int | None:
    """Return the step that the attempt began with (0: from the start), None when its checkpoint's name hides it."""
    if resumed_from is None:
        return 0
    found = _STEP.fullmatch(Path(resumed_from).name)
    return int(found[1]) if found else None


def _steps_in(folder: Path, age: tuple[int, int]) -> Iterator[_Saved]:
    for path in _entries(folder):
        found = _STEP.fullmatch(path.name)
        if found:
            yield _Saved(step=int(found[1]), age=age, path=path)


def _sweep(folder: Path, attempt: tuple[int, int], *, is_over: bool) -> None:
    """Delete what half-finished saves and deletions of attempts up to this one left, and the folder itself if empty."""
    for path in _entries(folder):
        saving = _SAVING.fullmatch(path.name)
        if saving and (int(saving[1]), int(saving[2])) < attempt:
            discard(path)
        elif path.name.startswith(_DISCARDED):
            shutil.rmtree(path, ignore_errors=True)
    if is_over:
        with contextlib.suppress(OSError):  # it holds something still
            folder.rmdir()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _is_sealed(path: Path) -> bool:
    try:
        return read_seal(path) is not None
    except (SealError, OSError):
        return False  # what cannot be read is neither counted nor deleted
