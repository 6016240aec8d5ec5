"""Who has reserved which nodes: the state, what changes it, and both as bytes. Pure.

A state is a fold of changes. A change that contradicts the state before it is damage, and loud.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunOrigin
from airflow_llmsched.errors import DataError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Whole nodes of one pool that are kept for one lease until somebody frees them. ``until_s``: Unix seconds.

    An expiry that has passed frees nothing: whatever runs there may run on.
    """

    key: LeaseKey
    pool: Pool
    nodes: tuple[NodeId, ...]
    until_s: float
    origin: RunOrigin | None = None

    @property
    def name(self) -> str:
        """Name of the reservation: the lease's."""
        return self.key.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Nodes were reserved."""

    reservation: Reservation
    kind: Literal["reserved"] = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A reservation expires later than before."""

    name: str
    until_s: float
    kind: Literal["extended"] = "extended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """A name is used up, and its nodes, if it had any, are free. ``remember_until_s``: until it may be forgotten."""

    name: str
    remember_until_s: float
    kind: Literal["freed"] = "freed"


Change = Annotated[Reserved | Extended | Freed, Field(discriminator="kind")]
AnyChange = Reserved | Extended | Freed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Reservations by name, and names that nobody can reserve under again, with when they may be forgotten."""

    reserved: Mapping[str, Reservation] = field(default_factory=dict)
    used_up: Mapping[str, float] = field(default_factory=dict)

    @property
    def taken(self) -> frozenset[NodeId]:
        """Every node that is reserved."""
        return frozenset(node for each in self.reserved.values() for node in each.nodes)


def apply(fleet: Fleet, change: AnyChange) -> Fleet:
    """Return the fleet after ``change``. Raises ``DataError`` where the change cannot have been made from it."""
    match change:
        case Reserved(reservation=reservation):
            name = reservation.name
            twice = sorted(fleet.taken & set(reservation.nodes))
            if twice or name in fleet.reserved or name in fleet.used_up:
                what = f"nodes {', '.join(twice)}, which are taken" if twice else "again under a name that was used"
                raise DataError(f"reservation {name} reserves {what}: restore the fleet's records from a backup")
            return replace(fleet, reserved={**fleet.reserved, name: reservation})
        case Extended(name=name, until_s=until_s):
            if name not in fleet.reserved:
                raise DataError(f"reservation {name} is extended, but there is none: restore the records from a backup")
            later = replace(fleet.reserved[name], until_s=max(until_s, fleet.reserved[name].until_s))
            return replace(fleet, reserved={**fleet.reserved, name: later})
        case Freed(name=name, remember_until_s=remember_until_s):
            others = {each: reservation for each, reservation in fleet.reserved.items() if each != name}
            return replace(fleet, reserved=others, used_up={**fleet.used_up, name: remember_until_s})


def forget(fleet: Fleet, *, now_s: float) -> Fleet:
    """Return the fleet without the names that may be forgotten."""
    return replace(fleet, used_up={name: until_s for name, until_s in fleet.used_up.items() if until_s > now_s})


def encode_change(change: AnyChange, *, number: int) -> bytes:
    """Return record ``number``."""
    return _dump({"v": FORMAT_VERSION, "number": number, "change": codec.to_plain(change, Change)})


def decode_change(data: bytes, *, number: int, where: str) -> AnyChange:
    """Return the change of record ``number``. Raises ``DataError`` naming ``where``."""
    change: AnyChange = _load(Change, data, number, "change", where)
    return change


def encode_fleet(fleet: Fleet, *, number: int) -> bytes:
    """Return the snapshot of the fleet after record ``number``."""
    return _dump({"v": FORMAT_VERSION, "number": number, "fleet": codec.to_plain(fleet)})


def decode_fleet(data: bytes, *, number: int, where: str) -> Fleet:
    """Return the fleet of a snapshot. Raises ``DataError`` naming ``where``."""
    fleet: Fleet = _load(Fleet, data, number, "fleet", where)
    return fleet


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(type_: Any, data: bytes, number: int, what: str, where: str) -> Any:
    try:
        plain = json.loads(data)
        if plain["v"] != FORMAT_VERSION:
            raise DataError(f"{where} has format version {plain['v']}, this package reads {FORMAT_VERSION}")
        if plain["number"] != number:
            raise DataError(f"{where} says that it is number {plain['number']}: restore it from a backup")
        return codec.from_plain(type_, plain[what])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DataError(f"{where} is damaged: restore it from a backup ({error})") from error
