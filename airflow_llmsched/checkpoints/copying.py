"""Copies one checkpoint to another file system: whole and verified under its name, or not there at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path

from airflow_llmsched.agent.seal import SEAL_NAME, Seal, SealError, check, read_seal
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError, StoreError

_COPY = EffectPoint("checkpoint.copy")
_FILE = EffectPoint("checkpoint.copy.file")
_PUBLISH = EffectPoint("checkpoint.copy.publish")
_TIDY = EffectPoint("checkpoint.copy.tidy")

_UNFINISHED = ".llmsched-copy-"
_ABANDONED_AFTER_S = 6 * 3600.0
"""A copy that nobody has written to for so long will not be finished: its worker died."""


def copy_checkpoint(source: str, target: str) -> int:
    """Copy the checkpoint folder ``source`` to ``target``, and return how many bytes that took; 0 if it was there.

    The copy is made beside its place, flushed, checked file by file against its seal (by digest where the seal has
    them, else by size; without a seal, by the sizes of the source), and then renamed. So a worker that dies leaves no
    half of it under a name that anyone reads, and two that copy at once leave one.

    Raises:
        DataError: the source does not agree with its own seal.
        StoreError: either side could not be read or written, or the copy differs. Nothing is at ``target`` then.
    """
    origin, place = Path(source), Path(target)
    try:
        origin.stat()
        seal = read_seal(origin)
        if place.is_dir() and _is_same(place, seal):
            return 0
        _clear_away(place.parent)
        copy = place.parent / f"{_UNFINISHED}{uuid.uuid4().hex}"
        try:
            num_bytes = _copy(origin, copy)
            _verify(origin, copy, seal)
            if not (place.is_dir() and _is_same(place, seal)):  # another worker may have been first
                _publish(copy, place)
        finally:
            _remove(copy)
    except SealError as error:
        raise DataError(f"{origin}: {error}: choose an older checkpoint") from error
    except OSError as error:
        raise StoreError(f"cannot copy {origin} to {place}: {error}; try again") from error
    return num_bytes


def _is_same(place: Path, seal: Seal | None) -> bool:
    """Whether what is at the target is the same checkpoint, whole. What has no seal cannot be told, and is replaced."""
    if seal is None:
        return False
    with contextlib.suppress(SealError):
        there = read_seal(place)
        return there is not None and there.digest == seal.digest and check(place, there, depth="content") is None
    return False


@_COPY
def _copy(origin: Path, copy: Path) -> int:
    """Copy every file and flush it, the seal last, as its writer did."""
    num_bytes = 0
    copy.mkdir(parents=True)
    for folder, _, names in os.walk(origin, onerror=_fail):
        below = copy / Path(folder).relative_to(origin)
        below.mkdir(exist_ok=True)
        for name in sorted(names, key=lambda each: (each == SEAL_NAME, each)):
            num_bytes += _copy_file(Path(folder) / name, below / name)
        _sync(below)
    return num_bytes


@_FILE
def _copy_file(origin: Path, copy: Path) -> int:
    with origin.open("rb") as source, copy.open("xb") as target:
        shutil.copyfileobj(source, target, length=4 * 2**20)
        target.flush()
        os.fsync(target.fileno())
        return target.tell()


def _verify(origin: Path, copy: Path, seal: Seal | None) -> None:
    if seal is None:
        for folder, _, names in os.walk(origin, onerror=_fail):
            for name in names:
                path = (Path(folder) / name).relative_to(origin)
                if (copy / path).stat().st_size != (origin / path).stat().st_size:
                    raise StoreError(f"{origin / path} changed while it was copied; try again")
        return
    problem = check(copy, seal, depth="content")
    if problem is None:
        return
    if check(origin, seal, depth="content") is not None:
        raise DataError(f"{origin} does not agree with its seal: {problem}: choose an older checkpoint")
    raise StoreError(f"the copy of {origin} is damaged: {problem}; try again")


@_PUBLISH
def _publish(copy: Path, place: Path) -> None:
    if place.exists():  # torn, damaged, or another's of that name
        place.rename(copy.with_name(f"{copy.name}-replaced"))
    copy.rename(place)
    _sync(place.parent)


@_TIDY
def _remove(copy: Path) -> None:
    for each in (copy, copy.with_name(f"{copy.name}-replaced")):
        shutil.rmtree(each, ignore_errors=True)


def _clear_away(folder: Path) -> None:
    """Remove what copies left whose workers died long ago."""
    if not folder.is_dir():
        return
    for each in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - each.stat().st_mtime > _ABANDONED_AFTER_S:
                _remove(each)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fail(error: OSError) -> None:
    raise error
