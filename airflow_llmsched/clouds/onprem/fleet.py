"""Who has reserved which nodes: the state, and what changes it. Pure.

A state is a fold of changes. A change that contradicts the state before it is damage, and loud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunOrigin
from airflow_llmsched.errors import DataError
from airflow_llmsched.numbered import Form


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


def forget(fleet: Fleet, now_s: float) -> Fleet:
    """Return the fleet without the names that may be forgotten."""
    return replace(fleet, used_up={name: until_s for name, until_s in fleet.used_up.items() if until_s > now_s})


FORM = Form(
    noun="fleet",
    version=1,
    empty=Fleet(),
    state_type=Fleet,
    change_type=Change,
    apply=apply,
    forget=forget,
)
