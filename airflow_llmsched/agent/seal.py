"""The seal of a checkpoint directory: a file, written last, that lists every other file with its size and digest.

A directory with a seal was finished; one whose files disagree with its seal is damaged. Standard library only, so that
any trainer can write it and any reader check it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

SEAL_NAME = "llmsched-seal.json"

_VERSION = 1
_BLOCK_BYTES = 4 * 2**20  # hashing releases the GIL; large blocks keep the threads out of each other's way
_MAX_THREADS = 16


class SealError(ValueError):
    """The seal file is there, but it is not a seal this version can trust. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """One file of a sealed directory. ``sha256`` is None when only sizes were sealed."""

    path: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a seal says. ``files`` are sorted by path; ``digest`` (sha256 over them) names the checkpoint's content."""

    step: int
    world_size: int
    saved_at_s: float
    hash_content: bool
    files: tuple[SealedFile, ...]
    digest: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all sealed files together."""
        return sum(file.num_bytes for file in self.files)


def seal(
    directory: str | os.PathLike[str],
    *,
    step: int,
    world_size: int,
    hash_content: bool = True,
    saved_at_s: float | None = None,
) -> str:
    """Seal a finished checkpoint and return its digest. Call it on one rank, after every rank has written.

    The files are flushed to storage first, so the seal cannot survive a crash that they do not. ``hash_content=False``
    records sizes only, for checkpoints too large to read back; the seal says so. An older seal is replaced.

    Raises:
        OSError: a file could not be read, or the seal not written; there is no seal then, or the old one.
    """
    root = Path(directory)
    paths = sorted(_relative_files(root))
    with ThreadPoolExecutor(max_workers=_MAX_THREADS) as pool:
        files = tuple(pool.map(lambda path: _sealed_file(root, path, hash_content=hash_content), paths))
    digest = _digest(files)
    document = {
        "v": _VERSION,
        "step": step,
        "world_size": world_size,
        "saved_at_s": time.time() if saved_at_s is None else saved_at_s,
        "hash_content": hash_content,
        "files": [_row(file) for file in files],
        "digest": digest,
    }
    _publish(root, json.dumps(document, separators=(",", ":")).encode())
    return digest


def read_seal(directory: str | os.PathLike[str]) -> Seal | None:
    """Return the directory's seal, or None when it has none.

    Raises:
        SealError: there is a seal file, but it is torn, altered or of another version.
        OSError: the file could not be read.
    """
    try:
        data = (Path(directory) / SEAL_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = _parse(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SealError(f"{SEAL_NAME} is not a readable seal: {error}") from error
    if found.digest != _digest(found.files):
        raise SealError(f"{SEAL_NAME} was altered: its digest does not match its file list")
    return found


def check(directory: str | os.PathLike[str], found: Seal, *, depth: str) -> str | None:
    """Return what is wrong with the first file that disagrees with the seal, or None when all agree.

    ``depth`` is ``listing`` (every file is there), ``sizes`` (and has its size) or ``content`` (and its digest, where
    the seal has one). Files the seal does not list do not matter.

    Raises:
        ValueError: an unknown depth.
        OSError: storage could not be read, so nothing is known.
    """
    if depth not in ("listing", "sizes", "content"):
        raise ValueError(f"unknown depth {depth!r}: use listing, sizes or content")
    root = Path(directory)
    for file in found.files:
        problem = _metadata_problem(root, file, sizes=depth != "listing")
        if problem:
            return problem
    if depth != "content":
        return None
    with ThreadPoolExecutor(max_workers=_MAX_THREADS) as pool:
        problems = list(pool.map(lambda file: _content_problem(root, file), found.files))
    return next((problem for problem in problems if problem), None)


def _relative_files(root: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(root, onerror=fail):
        for name in names:
            full = Path(folder) / name
            path = full.relative_to(root).as_posix()
            if path.startswith(SEAL_NAME):  # an older seal, or its temporary file
                continue
            if stat.S_ISREG(full.stat().st_mode):  # a pipe or a socket is no content, and reading it could block
                yield path


def _sealed_file(root: Path, path: str, *, hash_content: bool) -> SealedFile:
    with (root / path).open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        if not hash_content:
            return SealedFile(path=path, num_bytes=os.fstat(file.fileno()).st_size, sha256=None)
        num_bytes, sha256 = _hash(file)
    return SealedFile(path=path, num_bytes=num_bytes, sha256=sha256)


def _hash(file: Any) -> tuple[int, str]:
    digest = hashlib.sha256()
    num_bytes = 0
    block = memoryview(bytearray(_BLOCK_BYTES))
    while count := file.readinto(block):
        digest.update(block[:count])
        num_bytes += count
    return num_bytes, digest.hexdigest()


def _digest(files: Sequence[SealedFile]) -> str:
    rows = [_row(file) for file in sorted(files, key=lambda file: file.path)]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def _row(file: SealedFile) -> dict[str, Any]:
    return {"path": file.path, "num_bytes": file.num_bytes, "sha256": file.sha256}


def _parse(document: Any) -> Seal:
    if document["v"] != _VERSION:
        raise ValueError(f"version {document['v']!r}, this reader knows {_VERSION}")
    return Seal(
        step=int(document["step"]),
        world_size=int(document["world_size"]),
        saved_at_s=float(document["saved_at_s"]),
        hash_content=bool(document["hash_content"]),
        files=tuple(_parse_file(row) for row in document["files"]),
        digest=str(document["digest"]),
    )


def _parse_file(row: Any) -> SealedFile:
    path, num_bytes, sha256 = row["path"], row["num_bytes"], row["sha256"]
    parts = PurePosixPath(path).parts
    path.encode()  # a lone surrogate is a ValueError, here and not at the file system
    if not parts or "\0" in path or path.startswith("/") or ".." in parts:
        raise ValueError(f"path {path!r} leaves the directory")
    if not isinstance(num_bytes, int) or num_bytes < 0 or not (sha256 is None or isinstance(sha256, str)):
        raise ValueError(f"bad entry for {path!r}")
    return SealedFile(path=path, num_bytes=num_bytes, sha256=sha256)


def _metadata_problem(root: Path, file: SealedFile, *, sizes: bool) -> str | None:
    try:
        found = (root / file.path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{file.path} is missing"
    if not stat.S_ISREG(found.st_mode):
        return f"{file.path} is not a file"
    if sizes and found.st_size != file.num_bytes:
        return f"{file.path} has {found.st_size} bytes, its seal says {file.num_bytes}"
    return None


def _content_problem(root: Path, file: SealedFile) -> str | None:
    if file.sha256 is None:
        return None
    try:
        with (root / file.path).open("rb", buffering=0) as opened:
            _, sha256 = _hash(opened)
    except FileNotFoundError:
        return f"{file.path} is missing"
    if sha256 != file.sha256:
        return f"{file.path} has other content than was sealed (sha256 {sha256[:12]}, its seal says {file.sha256[:12]})"
    return None


def _publish(root: Path, data: bytes) -> None:
    temp = root / f"{SEAL_NAME}.{uuid.uuid4().hex}.tmp"
    try:
        with temp.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(root / SEAL_NAME)
    finally:
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
