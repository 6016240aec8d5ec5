"""Finds the text of a dataset: which files, in which order, and which of them nobody trains on."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.domain.workload import DatasetKind, DatasetSpec
from airflow_llmsched.errors import DataError, SpecError

_BLOCK_BYTES = 1024**2
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """One file of a corpus. ``name`` is its path below the corpus folder, the same on every machine."""

    name: str
    path: Path
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All files of a dataset in name order, whole files on either side of the split. ``source`` says where from."""

    source: str
    train: tuple[TextFile, ...]
    held_out: tuple[TextFile, ...]


def read_corpus(spec: DatasetSpec) -> Corpus:
    """Find, hash and split the files that ``spec`` asks for.

    Raises:
        SpecError: the source is missing or no folder, or too small to hold anything out.
        DataError: a file cannot be read.
    """
    source, names = _SOURCES[spec.kind](spec)
    files = [_hashed(source, name) for name in sorted(names)]
    if spec.max_bytes is not None:
        files = _sample(files, max_bytes=spec.max_bytes)
    if not any(file.num_bytes for file in files):
        raise SpecError(
            path="data.source", value=str(source), hint="has no text: name a folder with files that are not empty"
        )
    held_out = _held_out_contents(files, ratio=spec.held_out_ratio)
    return Corpus(
        source=str(source),
        train=tuple(file for file in files if file.sha256 not in held_out),
        held_out=tuple(file for file in files if file.sha256 in held_out),
    )


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes. Raises ``DataError`` naming it when it cannot be read."""
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; repair or remove it, then stage again") from error


def _standard_library(_: DatasetSpec) -> tuple[Path, Iterable[str]]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return folder, (name for name in _names(folder) if name.endswith(".py"))


def _files(spec: DatasetSpec) -> tuple[Path, Iterable[str]]:
    if not spec.source:
        raise SpecError(path="data.source", hint="must name a folder when data.kind is files")
    folder = Path(spec.source)
    if not folder.is_dir():
        raise SpecError(path="data.source", value=spec.source, hint="must be a folder that this machine can see")
    return folder, _names(folder, left_out=frozenset())


_SOURCES: Mapping[DatasetKind, Callable[[DatasetSpec], tuple[Path, Iterable[str]]]] = {
    DatasetKind.PYTHON_STDLIB: _standard_library,
    DatasetKind.FILES: _files,
}


def _names(folder: Path, *, left_out: frozenset[str] = _LEFT_OUT) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise DataError(f"cannot look into {error.filename}: {error.strerror}; make it readable") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name not in left_out]
        for name in names:
            path = Path(parent) / name
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def _hashed(folder: Path, name: str) -> TextFile:
    path = folder / name
    digest, num_bytes = hashlib.sha256(), 0
    for block in read_blocks(path):
        digest.update(block)
        num_bytes += len(block)
    return TextFile(name=name, path=path, num_bytes=num_bytes, sha256=digest.hexdigest())


def _sample(files: list[TextFile], *, max_bytes: int) -> list[TextFile]:
    """Keep files, in the order of their hashes rather than the alphabet's, as long as they fit."""
    kept, num_bytes = set(), 0
    for file in sorted(files, key=lambda file: (file.sha256, file.name)):
        if num_bytes + file.num_bytes <= max_bytes:
            kept.add(file.name)
            num_bytes += file.num_bytes
    if not num_bytes:
        raise SpecError(path="data.max_bytes", value=max_bytes, hint="no file is that small; raise it")
    return [file for file in files if file.name in kept]


def _held_out_contents(files: list[TextFile], *, ratio: float) -> frozenset[str]:
    """Choose by hash what is held out. Copies of one text go to one side, else held-out text would be trained on."""
    if ratio <= 0:
        return frozenset()
    size: dict[str, int] = {}
    for file in files:
        if file.num_bytes:
            size[file.sha256] = size.get(file.sha256, 0) + file.num_bytes
    if len(size) < 2:
        hint = "needs at least two different files, since whole files are held out; add files or set it to 0"
        raise SpecError(path="data.held_out_ratio", value=ratio, hint=hint)
    room_bytes = ratio * sum(size.values())
    chosen = set()
    for sha256 in sorted(size):
        if size[sha256] <= room_bytes:
            chosen.add(sha256)
            room_bytes -= size[sha256]
    return frozenset(chosen or {min(size, key=lambda sha256: (size[sha256], sha256))})
