"""The parts of a Hugging Face checkpoint directory: its state file, its weights in any of their forms, and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.checkpoints.archive import check_archive
from airflow_llmsched.checkpoints.dcp_directory import check_contents, read_contents
from airflow_llmsched.checkpoints.hf_deepspeed import DeepSpeedState
from airflow_llmsched.checkpoints.scan import Torn, file_sizes, looking_at, read_file, require_files
from airflow_llmsched.domain.checkpoint import VerifyDepth

STATE_NAME = "trainer_state.json"

_WHOLE_WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
    "pytorch_model_fsdp.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARDED = ("pytorch_model_fsdp_0/", "optimizer_0/")
_ARCHIVES = (".pt", ".pth", ".bin")
_MAX_HEADER_BYTES = 100_000_000  # what the safetensors library itself accepts


def read_state(directory: Path, names: Mapping[str, int], step: int) -> bytes:
    """Return the bytes of the state file. Raises ``Torn`` when it is absent, cut short or of another step."""
    data = read_file(directory, STATE_NAME)
    if data is None:
        raise Torn(f"{STATE_NAME} is missing: its save did not finish" if names else "it is empty")
    state = _json(STATE_NAME, data)
    if state.get("global_step") != step:
        raise Torn(f"{STATE_NAME} is of step {state.get('global_step')}, the directory of step {step}")
    return data


def check_parts(
    directory: Path, names: Mapping[str, int], deepspeed: DeepSpeedState | None, *, depth: VerifyDepth
) -> dict[str, int]:
    """Return the size of every file that belongs to the checkpoint. Raises ``Torn`` for the first that is not sound."""
    sizes = {name: size for name, size in names.items() if not name.endswith("/")}
    for index in _INDEXES:
        if index in names:
            sizes |= _indexed(directory, index)
    for folder in _SHARDED:
        if folder in names:
            sizes |= _sharded(directory, folder, depth)
    if deepspeed is not None:
        sizes |= {f"{deepspeed.folder}/{name}": size for name, size in deepspeed.sizes.items()}
    elif not any(name in names for name in (*_WHOLE_WEIGHTS, *_INDEXES, _SHARDED[0])):
        raise Torn("it holds no weights: neither a file of them, nor an index, nor sharded ones")
    if depth is not VerifyDepth.LISTING:
        _check_files(directory, sizes, content=depth is VerifyDepth.CONTENT)
    return sizes


def _indexed(directory: Path, index: str) -> dict[str, int]:
    weight_map = _json(index, read_file(directory, index) or b"").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Torn(f"{index} lists no weights")
    shards = {str(shard) for shard in weight_map.values()}
    for shard in shards:
        if not shard or "/" in shard or "\0" in shard or not shard.isprintable():
            raise Torn(f"{index} names the file {shard!r}, which is not in the checkpoint")
    try:
        return require_files(directory, dict.fromkeys(sorted(shards), 0), sizes=False)
    except Torn as torn:
        raise Torn(f"{index} needs a file that is not there: {torn}") from torn


def _sharded(directory: Path, folder: str, depth: VerifyDepth) -> dict[str, int]:
    inner = directory / folder
    try:
        found = check_contents(inner, read_contents(inner, file_sizes(inner)), depth=depth)
    except FileNotFoundError as error:
        raise Torn(f"{folder} is missing") from error
    except Torn as torn:
        raise Torn(f"in {folder} {torn}") from torn
    return {folder + name: size for name, size in found.items()}


def _check_files(directory: Path, sizes: Mapping[str, int], *, content: bool) -> None:
    for name, size in sizes.items():
        if name.endswith(".safetensors"):
            _check_safetensors(directory, name, size)
        elif name.endswith(_ARCHIVES):
            if size == 0:
                raise Torn(f"{name} is empty")
            check_archive(directory, name, content=content)


def _check_safetensors(directory: Path, name: str, size: int) -> None:
    # 8 bytes of header length, a JSON header, and the tensors at the offsets it gives; nothing follows.
    with looking_at(directory / name), (directory / name).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise Torn(f"{name} has {size} bytes, less than its header: it was cut short")
        header = _json(name, file.read(length))
    try:
        ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise Torn(f"{name} has a damaged header") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise Torn(f"{name} has {size} bytes, its header says {expected}")


def _json(name: str, data: bytes) -> dict[str, Any]:
    try:
        found = codec.parse_json(data)
    except ValueError as error:
        raise Torn(f"{name} is cut short or damaged: {error}") from error
    if not isinstance(found, dict):
        raise Torn(f"{name} holds no JSON object")
    return found
