"""Reads torch's ``.metadata`` without torch and without running anything in it.

The file is a pickle. Torch itself loads it unguarded, so one that names anything but the classes torch puts there must
be refused here, before a gang loads it. What it may name becomes an inert stand-in that only holds fields.
"""

from __future__ import annotations

import functools
import io
import pickle
import re
import struct
from collections.abc import Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

METADATA_NAME = ".metadata"

_DCP = "torch.distributed.checkpoint"
_PATHS = frozenset({"Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"})
_TENSOR_PROPERTIES = frozenset({"TensorProperties", "MEM_FORMAT_ENCODING", "_MEM_FORMAT_ENCODING"})

# What torch 2.1 to 2.13 writes, seen in its files and its source.
_ALLOWED: dict[str, frozenset[str]] = {
    f"{_DCP}.metadata": _TENSOR_PROPERTIES
    | {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
    },
    f"{_DCP}.filesystem": frozenset({"_StorageInfo", "_StoragePrefix"}),
    "torch.distributed._shard.sharded_tensor.metadata": _TENSOR_PROPERTIES,
    "torch.serialization": frozenset({"_get_layout"}),
    "pathlib": _PATHS,
    "pathlib._local": _PATHS,
}
_TORCH_CONSTANT = re.compile(
    r"Size|device|strided|jagged|sparse_\w+|contiguous_format|preserve_format|channels_last\w*"
    r"|bool|half|double|(u?int|q?u?int|float|bfloat|complex|bits)\d\w*|int|long|short|float"
)
_PLAIN: dict[tuple[str, str], type] = {
    ("collections", "OrderedDict"): dict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}

# The C reader can be made to fill the memory by four damaged bytes; the Python one cannot, but takes ten times as long.
_SLOW_LIMIT_BYTES = 4 * 2**20


class MetadataError(Exception):
    """The file is no usable ``.metadata``. The text says why, without the file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItem:
    """``num_bytes`` at ``offset_bytes`` of ``path``: part of a tensor or an object. ``transformed``: stored encoded."""

    path: str
    offset_bytes: int
    num_bytes: int
    tensor: bool
    transformed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpMetadata:
    """What the checkpoint holds. ``names`` are the keys of its state dict; ``only_tensors`` when none is an object."""

    items: tuple[StoredItem, ...]
    names: frozenset[str]
    only_tensors: bool

    def needed_bytes(self) -> dict[str, int]:
        """Return for each file it names, in name order, how long the file must be at least."""
        needed: dict[str, int] = {}
        for item in self.items:
            needed[item.path] = max(needed.get(item.path, 0), item.offset_bytes + item.num_bytes)
        return dict(sorted(needed.items()))


def parse_metadata(data: bytes) -> DcpMetadata:
    """Return what ``data`` (the bytes of ``.metadata``) describes. Raises ``MetadataError``."""
    try:
        reader = _SafeReader if len(data) <= _SLOW_LIMIT_BYTES else _FastReader
        found = reader(io.BytesIO(data)).load()
    except MetadataError:
        raise
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        EOFError,
        ImportError,
        LookupError,
        MemoryError,
        NotImplementedError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise MetadataError(f"is cut short or damaged ({type(error).__name__}: {error})") from error
    return _understand(found)


class _Inert:
    """Stands in for an instance of a torch class: takes what the pickle gives, does nothing with it."""

    __slots__ = ("fields",)

    def __new__(cls, *_args: Any, **_kwargs: Any) -> _Inert:
        made = object.__new__(cls)
        made.fields = {}
        return made

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.fields: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        # A dict, or (dict of __dict__, dict of __slots__); other shapes hold nothing that is needed here.
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.fields.update(part)


@functools.lru_cache(maxsize=1024)
def _stand_in(module: str, name: str) -> type:
    if (module, name) in _PLAIN:
        return _PLAIN[module, name]
    if name in _ALLOWED.get(module, ()) or (module == "torch" and _TORCH_CONSTANT.fullmatch(name)):
        return type(name, (_Inert,), {"__slots__": ()})
    raise MetadataError(f"names {module}.{name}, which no checkpoint of torch needs: loading it could run foreign code")


class _FindInert:
    """The only way a pickle gets at a name: the allow-list, and stand-ins for what is on it."""

    def find_class(self, module: str, name: str) -> type:
        return _stand_in(module, name)

    def persistent_load(self, _pid: object) -> Any:
        raise MetadataError("holds a persistent reference, which no checkpoint of torch does")


class _SafeReader(_FindInert, pickle._Unpickler):
    pass


class _FastReader(_FindInert, pickle.Unpickler):
    pass


def _understand(found: Any) -> DcpMetadata:
    if type(found).__name__ != "Metadata" or not isinstance(found, _Inert):
        raise MetadataError(f"holds a {type(found).__name__}, not the Metadata of a torch checkpoint")
    stored, described = found.fields.get("storage_data"), found.fields.get("state_dict_metadata")
    if not isinstance(stored, dict) or not isinstance(described, dict):
        raise MetadataError("lists no stored items: it was written for a planner, not a finished checkpoint")
    tensors = {name for name, value in described.items() if type(value).__name__ == "TensorStorageMetadata"}
    return DcpMetadata(
        items=tuple(_item(index, value, tensors) for index, value in stored.items()),
        names=frozenset(str(name) for name in described),
        only_tensors=len(tensors) == len(described),
    )


def _item(index: Any, value: Any, tensors: Set[Any]) -> StoredItem:
    fields = value.fields if isinstance(value, _Inert) else {}
    path, offset, length = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if not isinstance(path, str) or not isinstance(offset, int) or not isinstance(length, int):
        raise MetadataError("lists an item without file, offset or length")
    if min(offset, length) < 0:
        raise MetadataError(f"lists an item of {path} with a negative offset or length")
    if not _below(path):
        raise MetadataError(f"names the file {path!r}, which is not below the checkpoint")
    return StoredItem(
        path=path,
        offset_bytes=offset,
        num_bytes=length,
        tensor=isinstance(index, _Inert) and index.fields.get("fqn") in tensors,
        transformed=bool(fields.get("transform_descriptors")),
    )


def _below(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return bool(path) and "\0" not in path and not path.startswith("/") and ".." not in PurePosixPath(path).parts
