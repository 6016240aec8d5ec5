"""Hand-made checkpoints with the bytes of the real formats, written without torch."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DCP = "torch.distributed.checkpoint"


@dataclass(frozen=True)
class Instance:
    """An instance of a class named in a pickle: ``module.name`` with ``state``."""

    module: str
    name: str
    state: Mapping[str, Any] = field(default_factory=dict)
    tag: int = 0  # makes keys of a dict differ

    def __hash__(self) -> int:
        return hash((self.module, self.name, self.tag))


@dataclass(frozen=True)
class Call:
    """A call that loading the pickle would make."""

    module: str
    name: str
    arguments: tuple[Any, ...]


def to_pickle(value: Any) -> bytes:
    """Return a pickle of ``value``, in which instances and calls are spelled out by opcode."""
    return b"\x80\x04" + _opcodes(value) + pickle.STOP


def _opcodes(value: Any) -> bytes:
    if isinstance(value, Instance):
        made = f"c{value.module}\n{value.name}\n".encode() + pickle.EMPTY_TUPLE + pickle.NEWOBJ
        return made + _opcodes(dict(value.state)) + pickle.BUILD
    if isinstance(value, Call):
        return f"c{value.module}\n{value.name}\n".encode() + _opcodes(value.arguments) + pickle.REDUCE
    if isinstance(value, dict):
        items = b"".join(_opcodes(key) + _opcodes(item) + pickle.SETITEM for key, item in value.items())
        return pickle.EMPTY_DICT + items
    if isinstance(value, tuple):
        return pickle.MARK + b"".join(map(_opcodes, value)) + pickle.TUPLE
    if isinstance(value, list):
        return pickle.EMPTY_LIST + b"".join(_opcodes(item) + pickle.APPEND for item in value)
    return pickle.dumps(value, 2)[2:-1]  # a scalar, without the protocol before and the stop after


def archive(payload: bytes) -> bytes:
    """Return what ``torch.save`` writes, in outline: an uncompressed zip with a CRC-32 per entry."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("archive/data.pkl", b"\x80\x02.")
        made.writestr("archive/data/0", payload)
    return buffer.getvalue()


def dcp_metadata(
    items: Mapping[str, tuple[str, int, int]], *, objects: tuple[str, ...] = ("step",), save_id: str = ""
) -> bytes:
    """Return a ``.metadata`` for state-dict names that lie at (file, offset, length). ``objects`` are no tensors."""
    kinds = {name: "BytesStorageMetadata" if name in objects else "TensorStorageMetadata" for name in items}
    stored = {
        Instance(f"{DCP}.metadata", "MetadataIndex", {"fqn": name}, tag=number): Instance(
            f"{DCP}.filesystem", "_StorageInfo", {"relative_path": path, "offset": offset, "length": length}
        )
        for number, (name, (path, offset, length)) in enumerate(items.items())
    }
    storage_meta = Instance(f"{DCP}.metadata", "StorageMeta", {"save_id": save_id})
    described = {name: Instance(f"{DCP}.metadata", kind) for name, kind in kinds.items()}
    state = {"state_dict_metadata": described, "planner_data": None, "storage_data": stored}
    state |= {"storage_meta": storage_meta, "version": "1.0.0"}
    return to_pickle(Instance(f"{DCP}.metadata", "Metadata", state))


def save_dcp(directory: Path, *, num_ranks: int = 2, names: tuple[str, ...] = ("model.w", "optim.exp_avg")) -> Path:
    """Write a whole DCP checkpoint: each of ``num_ranks`` writes a shard, then comes the metadata."""
    directory.mkdir(parents=True, exist_ok=True)
    items: dict[str, tuple[str, int, int]] = {}
    for rank in range(num_ranks):
        shard = f"__{rank}_0.distcp"
        offset, data = 0, b""
        for name in (*names, *(("step",) if rank == 0 else ())):
            part = archive(f"{directory.name} {name} {rank}".encode() * 50)
            items[name if name == "step" else f"{name}.{rank}"] = (shard, offset, len(part))
            offset, data = offset + len(part), data + part
        (directory / shard).write_bytes(data)
    (directory / ".metadata").write_bytes(dcp_metadata(items, save_id=directory.name))
    return directory


def safetensors(payload: bytes) -> bytes:
    """Return a safetensors file with one tensor of bytes."""
    entry = {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + payload


def save_hf(directory: Path, *, num_ranks: int = 1, weights: str = "model.safetensors") -> Path:
    """Write a whole Trainer checkpoint with 2 shards, in the Trainer's order. The step is the number in its name."""
    directory.mkdir(parents=True, exist_ok=True)
    stem, _, suffix = weights.partition(".")
    shards = [f"{stem}-{number:05d}-of-00002.{suffix}" for number in (1, 2)]
    for shard in shards:
        payload = f"{directory.name} {shard}".encode() * 40
        (directory / shard).write_bytes(safetensors(payload) if suffix == "safetensors" else archive(payload))
    weight_map = {f"layers.{number}.w": shard for number, shard in enumerate(shards)}
    (directory / f"{weights}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "optimizer.pt").write_bytes(archive(f"{directory.name} optimizer".encode() * 100))
    (directory / "scheduler.pt").write_bytes(archive(b"scheduler"))
    for rank in range(num_ranks):
        name = "rng_state.pth" if num_ranks == 1 else f"rng_state_{rank}.pth"
        (directory / name).write_bytes(archive(b"rng %d" % rank))
    step = int(directory.name.rpartition("-")[2])
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 0.5, "log_history": []}))
    return directory


def add_deepspeed(directory: Path, *, num_dp_ranks: int) -> Path:
    """Turn a Trainer checkpoint into one of ZeRO: weights and optimizer lie in the folder that ``latest`` names."""
    for path in (*directory.glob("model*"), directory / "optimizer.pt", directory / "scheduler.pt"):
        path.unlink()
    tag = f"global_step{directory.name.rpartition('-')[2]}"
    (directory / tag).mkdir()
    (directory / tag / "mp_rank_00_model_states.pt").write_bytes(archive(b"model"))
    for rank in range(num_dp_ranks):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        (directory / tag / name).write_bytes(archive(b"zero %d" % rank))
    (directory / "latest").write_text(tag)
    return directory
