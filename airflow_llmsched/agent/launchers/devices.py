"""Which accelerators of its node a process sees: the slots of the placement, in each maker's own variables. Pure.

Ranks of a node see all that their gang has there, in the order of local ranks: rank i uses device i, as frameworks
expect (``torch.device("cuda", LOCAL_RANK)``), and collectives reach their neighbours' memory. On TPUs, where a chip
belongs to one process, each rank sees its own. A request without ``devices`` leaves them alone: there are none, or the
engine binds them itself (Slurm's GRES).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NVIDIA = "nvidia"
AMD = "amd"
TPU = "google"

_SELECTORS = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
        *("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"),
        *("TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT", "CLOUD_TPU_TASK_ID"),
    )
)

_CHIP_GRID = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "4,2,1"}
"""How the chips of one TPU host are wired, by their number: as JAX's own tests of several processes state it
(``jax/_src/test_multiprocess.py``, 0.10; eight chips are a v6e host)."""


def is_tpu(body: Mapping[str, Any]) -> bool:
    """Whether the gang's accelerators are TPUs."""
    return vendor_of(body) == TPU


def vendor_of(body: Mapping[str, Any]) -> str | None:
    """Return who made the accelerators that the agent is to hand out; None: it hands out none."""
    devices = body.get("devices")
    return None if devices is None else devices["vendor"]


def without_selection(base: Mapping[str, str], vendor: str | None) -> dict[str, str]:
    """Return an environment without what somebody else selected, unless the agent selects nothing."""
    return {name: value for name, value in base.items() if vendor is None or name not in _SELECTORS}


def selection(vendor: str | None, slots: Sequence[int | str]) -> dict[str, str]:
    """Return the variables that show a process exactly ``slots``, in this order; no slots: no accelerator.

    A slice of an accelerator goes by its name, such as a MIG instance's UUID.

    Sources: CUDA C++ Programming Guide, "CUDA environment variables" (slots are numbered as nvidia-smi does, by PCI
    address, and not by speed); AMD, "HIP environment variables" (on Linux ROCR_VISIBLE_DEVICES, which every runtime
    heeds; HIP_VISIBLE_DEVICES then counts among these); Google's libtpu, as JAX uses it.
    """
    named = ",".join(str(slot) for slot in slots)
    if vendor == NVIDIA:
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": named}
    if vendor == AMD:
        return {"ROCR_VISIBLE_DEVICES": named} if named else {"HIP_VISIBLE_DEVICES": "-1"}
    if vendor == TPU:
        return {"TPU_VISIBLE_CHIPS": named} if named else {"JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"}
    return {}


def share(environ: Mapping[str, str], *, num_before: int, num_slots: int) -> dict[str, str]:
    """Return the variables that show a process its share of what an engine has bound for the whole node.

    Members share it in order, the ranks first: ``num_before`` are others'. Nothing where the engine bound nothing.
    """
    found = {}
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        bound = [each for each in environ.get(name, "").split(",") if each]
        if num_slots and len(bound) >= num_before + num_slots:
            found[name] = ",".join(bound[num_before : num_before + num_slots])
    return found


def tpu_process(slots: Sequence[int], *, index: int, addresses: Sequence[str]) -> dict[str, str]:
    """Return what tells libtpu that process ``index`` of one host has the chip ``slots[index]``, the others the rest.

    ``addresses`` (``host:port``) are where these processes reach each other, by process. Raises ``ValueError`` for a
    number of chips that no host has.
    """
    grid = _CHIP_GRID.get(len(slots))
    if grid is None:
        raise ValueError(f"{len(slots)} TPU chips of one host form no grid: use {', '.join(map(str, _CHIP_GRID))}")
    return {
        "TPU_VISIBLE_CHIPS": str(slots[index]),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": grid,
        "TPU_PROCESS_ADDRESSES": ",".join(addresses),
        "TPU_PROCESS_PORT": addresses[index].rpartition(":")[2],
        "CLOUD_TPU_TASK_ID": str(index),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def visible_ids(environ: Mapping[str, str], *, num_ranks: int) -> list[str]:
    """Return the devices of a node's ranks as CUDA_VISIBLE_DEVICES names them, for a launcher that sets it again."""
    named = [each for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return named if len(named) == num_ranks else [str(index) for index in range(num_ranks)]
