"""Packs a corpus into shards beside a manifest. The manifest is written last, so where it is, everything is."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from airflow_llmsched import codec
from airflow_llmsched.domain.checkpoint import VerifyDepth
from airflow_llmsched.domain.dataset import DatasetManifest, Shard
from airflow_llmsched.domain.workload import DatasetSpec
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.staging.corpus import Corpus, TextFile, read_blocks, read_corpus
from airflow_llmsched.staging.verify import MANIFEST_NAME, content_digest, load_manifest, verify

_CLEAR = EffectPoint("staging.clear")
_REMOVE = EffectPoint("staging.remove")
_WRITE = EffectPoint("staging.write")

SEPARATOR = b"\0"
"""Stands behind every file, so that the model sees where a text ends. Source code holds no zero byte."""

_PACKING_VERSION = 1
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = 0o444
_LOCK_NAME = ".staging-lock"
_OURS = re.compile(r"(train|held_out)-\d{5,}\.bin(\.partial)?|manifest\.json\.partial")


def stage(spec: DatasetSpec, *, destination: str) -> DatasetManifest:
    """Stage the dataset below ``destination`` and return its manifest. Repeating it with the same text writes nothing.

    Raises:
        SpecError: the spec names no usable text.
        DataError: text cannot be read or changes meanwhile, or the destination cannot be written. No manifest is left
            then, so half a dataset is never taken for a whole one.
    """
    folder = Path(destination)
    corpus = read_corpus(spec)
    if folder.resolve().is_relative_to(Path(corpus.source).resolve()):
        hint = f"must lie outside the text's own folder {corpus.source}, or shards would become text"
        raise SpecError(path="data.destination", value=destination, hint=hint)
    source_digest = _source_digest(corpus, spec)
    staged = _already_staged(folder, source_digest)
    if staged is not None:
        return staged
    with _disk_trouble_named(folder), _alone(folder):
        staged = _already_staged(folder, source_digest)  # by whoever we waited for
        if staged is not None:
            return staged
        with _CLEAR:
            (folder / MANIFEST_NAME).unlink(missing_ok=True)
        _remove_ours(folder)
        manifest = _pack(corpus, folder, shard_bytes=spec.shard_bytes)
        manifest = replace(manifest, source_digest=source_digest)
        _write(folder / MANIFEST_NAME, [codec.to_json(manifest)])
        return manifest


def _source_digest(corpus: Corpus, spec: DatasetSpec) -> str:
    """Name the text and how it is packed: what decides whether a staged copy is still right."""
    digest = hashlib.sha256(f"{_PACKING_VERSION} {spec.shard_bytes}\n".encode())
    for split, files in (("train", corpus.train), ("held_out", corpus.held_out)):
        for file in files:
            digest.update(f"{split} {file.sha256} {file.name}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _already_staged(folder: Path, source_digest: str) -> DatasetManifest | None:
    """Return the manifest of a destination that holds this very text, every byte of it checked."""
    path = folder / MANIFEST_NAME
    if not path.exists():
        return None
    try:
        manifest = load_manifest(str(path))
        verify(manifest, str(folder), VerifyDepth.CONTENT)
    except DataError:
        return None  # damaged: staged afresh
    return manifest if manifest.source_digest == source_digest else None


def _remove_ours(folder: Path) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            with _REMOVE:
                path.unlink()


def _pack(corpus: Corpus, folder: Path, *, shard_bytes: int) -> DatasetManifest:
    train = _pack_split("train", corpus.train, folder, shard_bytes=shard_bytes)
    held_out = _pack_split("held_out", corpus.held_out, folder, shard_bytes=shard_bytes)
    return DatasetManifest(
        root=str(folder),
        train=train,
        held_out=held_out,
        source=corpus.source,
        digest=content_digest(train, held_out),
    )


def _pack_split(split: str, files: Iterable[TextFile], folder: Path, *, shard_bytes: int) -> tuple[Shard, ...]:
    text = _Cutter(_text(files))
    shards: list[Shard] = []
    while not text.at_end():
        name = f"{split}-{len(shards):05d}.bin"
        num_bytes, sha256 = _write(folder / name, text.take(shard_bytes))
        shards.append(Shard(path=name, num_bytes=num_bytes, sha256=sha256))
    return tuple(shards)


def _text(files: Iterable[TextFile]) -> Iterator[bytes]:
    """Yield every file and a separator behind it; refuse a file that is not what it was when it was hashed."""
    for file in files:
        digest = hashlib.sha256()
        for block in read_blocks(file.path):
            digest.update(block)
            yield block
        if digest.hexdigest() != file.sha256:
            raise DataError(f"{file.path} changed while it was being staged; stage again once it is at rest")
        yield SEPARATOR


class _Cutter:
    """Cuts a stream of blocks into stretches of given lengths, without holding more than one block."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def at_end(self) -> bool:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return True
            self._rest = block
        return False

    def take(self, num_bytes: int) -> Iterator[bytes]:
        while num_bytes > 0 and not self.at_end():
            piece, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
            num_bytes -= len(piece)
            yield piece


@_WRITE
def _write(path: Path, pieces: Iterable[bytes]) -> tuple[int, str]:
    """Write a file so that it is either absent or whole, even after a power cut. Return its size and sha256."""
    temporary = path.with_name(f"{path.name}.partial")
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                num_bytes += len(piece)
            file.flush()
            os.fchmod(file.fileno(), _READ_ONLY)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return num_bytes, digest.hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else stages to ``folder``. The lock goes with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_NAME).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk_trouble_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "free space there or stage elsewhere" if error.errno in _FULL_DISK else "make it writable"
        raise DataError(
            f"cannot stage the dataset to {folder}: {error.strerror}; {advice}, then stage again"
        ) from error
