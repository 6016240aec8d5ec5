"""What one directory written by ``torch.distributed.checkpoint`` must hold. Shared by all formats that contain one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.checkpoints.archive import check_items
from airflow_llmsched.checkpoints.dcp_metadata import METADATA_NAME, DcpMetadata, MetadataError, parse_metadata
from airflow_llmsched.checkpoints.scan import Torn, check_rank_markers, check_ranks, read_file, require_files
from airflow_llmsched.domain.checkpoint import VerifyDepth

_SHARD = re.compile(r"__(?P<rank>[0-9]{1,6})_[0-9]+\.distcp")
_RANK_METADATA = re.compile(r"__(?P<rank>[0-9]{1,6})\.metadata")
_MODEL_EXPORT = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpContents:
    """``per_rank``: each rank wrote a metadata file of its own and reads only that one, so the world size is fixed."""

    parts: tuple[DcpMetadata, ...]
    metadata_digests: Mapping[str, str]
    per_rank: bool

    @property
    def world_size(self) -> int | None:
        """Ranks that saved, where the directory says it."""
        return len(self.parts) if self.per_rank else None

    @property
    def only_model(self) -> bool:
        """Whether it holds nothing but tensors, none of them an optimizer's: an export, not a training state."""
        words = ("optim", "param_groups", "exp_avg", "momentum")
        return all(part.only_tensors for part in self.parts) and not any(
            word in name for part in self.parts for name in part.names for word in words
        )


def read_contents(directory: Path, names: Mapping[str, int]) -> DcpContents:
    """Return what the directory, whose entries are ``names``, holds by its metadata files. Raises ``Torn``."""
    shard_ranks = {int(found["rank"]) for name in names if (found := _SHARD.fullmatch(name))}
    check_rank_markers(names, shard_ranks)
    if METADATA_NAME in names:
        return _read(directory, [METADATA_NAME], per_rank=False)
    ranks = {int(found["rank"]) for name in names if (found := _RANK_METADATA.fullmatch(name))}
    if not ranks:
        raise Torn(_why_without_metadata(names))
    check_ranks("their metadata file", ranks, {*range(max(ranks) + 1), *shard_ranks})
    return _read(directory, [f"__{rank}{METADATA_NAME}" for rank in sorted(ranks)], per_rank=True)


def check_contents(directory: Path, contents: DcpContents, *, depth: VerifyDepth) -> dict[str, int]:
    """Return the size of every file that is needed. Raises ``Torn`` when one fails the check of ``depth``."""
    needed = dict.fromkeys(contents.metadata_digests, 1)
    for part in contents.parts:
        for name, least in part.needed_bytes().items():
            needed[name] = max(least, needed.get(name, 0))
    found = require_files(directory, needed, sizes=depth is not VerifyDepth.LISTING)
    if depth is VerifyDepth.CONTENT:
        check_items(directory, [item for part in contents.parts for item in part.items])
    return found


def manifest_digest(sizes: Mapping[str, int], digests: Mapping[str, str]) -> str:
    """Return the name of content that has no seal: sha256 over files and sizes, and what metadata files hash to."""
    rows = [sorted(sizes.items()), sorted(digests.items())]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def _read(directory: Path, names: list[str], *, per_rank: bool) -> DcpContents:
    parts: list[DcpMetadata] = []
    digests: dict[str, str] = {}
    for name in names:
        data = read_file(directory, name)
        if data is None:
            raise Torn(f"{name} is missing")
        try:
            parts.append(parse_metadata(data))
        except MetadataError as error:
            raise Torn(f"{name} {error}") from error
        digests[name] = hashlib.sha256(data).hexdigest()
    if not any(part.items for part in parts):
        raise Torn(f"{names[0]} names no stored item: nothing was saved")
    return DcpContents(parts=tuple(parts), metadata_digests=digests, per_rank=per_rank)


def _why_without_metadata(names: Mapping[str, int]) -> str:
    if not names:
        return "it is empty"
    if METADATA_NAME + "/" in names:
        return f"{METADATA_NAME} is a directory, not a file"
    if _MODEL_EXPORT in names:
        return f"{METADATA_NAME} is missing: it holds a model export ({_MODEL_EXPORT}), no training state"
    return f"{METADATA_NAME} is missing: its save did not finish"
