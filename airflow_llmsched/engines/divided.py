"""Accelerators that are divided into slices: which ones, and under which numbers gangs hold them. Pure.

A slice is a slot of its own (``domain.slots``). The accelerator itself is then nobody's as a whole. Another engine may
list the same node otherwise, and so may this one's options before they were changed: what gangs hold by either is not
free here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.domain.slots import FIRST_SLICE, slice_slots, taken_of
from airflow_llmsched.domain.topology import Division
from airflow_llmsched.errors import SpecError

MIG, TIME = "mig", "time"
_KINDS = (MIG, TIME)
_MAX_SLICES = 64
_KNOWN = ("slot", "kind", "devices", "slices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """One accelerator of a node, and what its slices are called where processes are shown them."""

    slot: int
    kind: str
    devices: tuple[str, ...]


def parse_divided(plain: object, *, num_slots: int, at: str) -> tuple[Divided, ...]:
    """Return the divided accelerators of a node's options. Raises ``SpecError`` naming the entry below ``at``.

    Each has ``slot`` and ``kind``. Of kind ``mig`` it lists ``devices``, the instances' UUIDs (``nvidia-smi -L``); of
    kind ``time`` it says into how many ``slices`` its time is divided.
    """
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        raise SpecError(path=at, value=plain, hint="must be a list of divided accelerators")
    if plain and num_slots >= FIRST_SLICE:
        raise SpecError(path=at, hint=f"needs a node of fewer than {FIRST_SLICE} accelerators")
    found = tuple(_divided(each, num_slots=num_slots, at=f"{at}[{index}]") for index, each in enumerate(plain))
    if len({each.slot for each in found}) < len(found):
        raise SpecError(path=at, hint="divides a slot twice")
    devices = [device for each in found if each.kind == MIG for device in each.devices]
    if len(set(devices)) < len(devices):
        raise SpecError(path=at, hint="names a MIG instance twice")
    return found


def part_words(num_slots: int, divided: Sequence[Divided]) -> str:
    """Return what an engine has of a node (``ports.PartialEngine``)."""
    return " ".join([str(num_slots), *(f"{each.slot}:{each.kind}:{','.join(each.devices)}" for each in divided)])


def whole(num_slots: int, divided: Sequence[Divided], used: Collection[int]) -> tuple[int, ...]:
    """Return the whole accelerators of a node that are free."""
    gone = {each.slot for each in divided} | taken_of(range(num_slots), used)
    return tuple(slot for slot in range(num_slots) if slot not in gone)


def divisions(divided: Sequence[Divided], used: Collection[int]) -> tuple[Division, ...]:
    """Return a node's divided accelerators with the slices of each, and which are free."""
    found = []
    for each in divided:
        slices = slice_slots(each.slot, len(each.devices))
        taken = taken_of(slices, used)
        free = tuple(slot for slot in slices if slot not in taken)
        found.append(Division(slot=each.slot, kind=each.kind, slices=tuple(slices), free=free))
    return tuple(found)


def device_names(divided: Sequence[Divided]) -> dict[int, str]:
    """Return what processes are shown of each slice, by its slot."""
    return {
        slot: device
        for each in divided
        for slot, device in zip(slice_slots(each.slot, len(each.devices)), each.devices, strict=True)
    }


def _divided(plain: object, *, num_slots: int, at: str) -> Divided:
    if not isinstance(plain, Mapping):
        raise SpecError(path=at, value=plain, hint="must have slot and kind")
    unknown = sorted(set(plain) - set(_KNOWN))
    if unknown:
        raise SpecError(path=f"{at}.{unknown[0]}", hint=f"is not known; known: {', '.join(_KNOWN)}")
    slot, kind = plain.get("slot"), plain.get("kind")
    if type(slot) is not int or not 0 <= slot < num_slots:
        raise SpecError(path=f"{at}.slot", value=slot, hint=f"must be one of the node's slots, 0 to {num_slots - 1}")
    if kind not in _KINDS:
        raise SpecError(path=f"{at}.kind", value=kind, hint=f"must be {MIG} or {TIME}")
    return Divided(slot=slot, kind=kind, devices=_instances(plain, at) if kind == MIG else _turns(plain, slot, at))


def _instances(plain: Mapping[str, Any], at: str) -> tuple[str, ...]:
    devices = plain.get("devices")
    is_list = isinstance(devices, list) and 0 < len(devices) <= _MAX_SLICES
    if not is_list or not all(isinstance(each, str) and each.startswith("MIG-") for each in devices or ()):
        raise SpecError(path=f"{at}.devices", value=devices, hint="must list the MIG instances' UUIDs, as MIG-...")
    return tuple(devices or ())


def _turns(plain: Mapping[str, Any], slot: int, at: str) -> tuple[str, ...]:
    number = plain.get("slices")
    if type(number) is not int or not 2 <= number <= _MAX_SLICES:
        raise SpecError(path=f"{at}.slices", value=number, hint=f"must be a whole number from 2 to {_MAX_SLICES}")
    return (str(slot),) * number
