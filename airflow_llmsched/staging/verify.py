"""Reads manifests of staged datasets, and checks that the shards are what the manifest says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.checkpoint import VerifyDepth
from airflow_llmsched.domain.dataset import DatasetManifest, Shard
from airflow_llmsched.errors import DataError

MANIFEST_NAME = "manifest.json"

_AGAIN = "stage the dataset again"


def load_manifest(path: str) -> DatasetManifest:
    """Read a manifest. Raises ``DataError`` when it is missing, unreadable or does not match its own digest."""
    try:
        manifest = codec.from_json(DatasetManifest, Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"cannot read the dataset manifest {path}: {error.strerror}; {_AGAIN}") from error
    except ValidationError as error:
        raise DataError(f"{path} is no dataset manifest: {error.errors()[0]['msg']}; {_AGAIN}") from error
    if manifest.digest != content_digest(manifest.train, manifest.held_out):
        raise DataError(f"{path} was altered: its digest does not match its list of shards; {_AGAIN}")
    for shard in (*manifest.train, *manifest.held_out):
        parts = PurePosixPath(shard.path)
        if parts.is_absolute() or ".." in parts.parts:
            raise DataError(f"{path} lists shard {shard.path!r}, which leaves its folder; {_AGAIN}")
    return manifest


def verify(manifest: DatasetManifest, root: str, depth: VerifyDepth) -> None:
    """Check every shard below ``root`` as deep as asked.

    Raises:
        DataError: a shard is missing, torn, or has other content; names the first.
    """
    for shard in (*manifest.train, *manifest.held_out):
        problem = _problem(shard, Path(root) / shard.path, depth)
        if problem:
            raise DataError(f"shard {Path(root) / shard.path} {problem}; {_AGAIN}")


def content_digest(train: Iterable[Shard], held_out: Iterable[Shard]) -> str:
    """Return the sha256 of the lists of shards: it names the tokens and their order, wherever they lie."""
    rows = [[[shard.path, shard.num_bytes, shard.sha256] for shard in split] for split in (train, held_out)]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def _problem(shard: Shard, path: Path, depth: VerifyDepth) -> str | None:
    try:
        num_bytes = path.stat().st_size
        if depth is not VerifyDepth.LISTING and num_bytes != shard.num_bytes:
            return f"is torn: it has {num_bytes} bytes, its manifest says {shard.num_bytes}"
        if depth is VerifyDepth.CONTENT:
            return _content_problem(shard, path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def _content_problem(shard: Shard, path: Path) -> str | None:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 == shard.sha256:
        return None
    return f"has other content than was staged (sha256 {sha256[:12]}, its manifest says {shard.sha256[:12]})"
