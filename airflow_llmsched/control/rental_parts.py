"""What a run holds at once: one lease for the whole gang, or one that stays and one that is added beside it (a mix).

The book says which leases belong together, so that any process sees the same: of each role the newest that is of use,
and what is added counts only if it was rented after what it is added to. Alone it counts as the whole. Each role has
two purposes, so that one lease can be rented while another is held.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_llmsched.control.renting import Renter, each_of
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import Lease, LeaseState, NoticeKind
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.rental_ways import Stock


class Role(StrEnum):
    """What a lease is for."""

    MAIN = ""
    """The whole gang, or the part of a mix that stays."""
    MORE = "-more"
    """What a mix adds to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One lease of a run, ordered at ``ordered_at_s`` (Unix seconds)."""

    purpose: str
    role: Role
    lease: Lease
    ordered_at_s: float

    @property
    def stock(self) -> Stock:
        """Return what it is of."""
        return Stock(pool=self.lease.pool, num_nodes=self.lease.num_nodes)

    @property
    def is_reserved(self) -> bool:
        """Whether it is of a reservation, which has so many nodes and no more."""
        return self.lease.pool.capacity_type is CapacityType.RESERVED

    @property
    def is_of_use(self) -> bool:
        """Whether a gang may be planned on it: it is there or on its way, and nobody has announced to take it."""
        return self.lease.state in (LeaseState.ACTIVE, LeaseState.PENDING) and not is_announced(self.lease)

    @property
    def number(self) -> tuple[int, int]:
        """Return its place among all that the run ever rented."""
        return self.lease.key.generation, self.lease.key.rental

    def is_under(self, nodes: Collection[NodeId]) -> bool:
        """Whether any of ``nodes``, as an engine calls them, is of this lease."""
        return any(node.id in nodes or (node.address and node.address in nodes) for node in self.lease.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is held together; nothing, without ``main``."""

    main: Part | None = None
    more: Part | None = None

    @property
    def all(self) -> tuple[Part, ...]:
        """Return both, as far as they are there."""
        return tuple(part for part in (self.main, self.more) if part is not None)

    @property
    def purposes(self) -> frozenset[str]:
        """Return under which purposes they were rented."""
        return frozenset(part.purpose for part in self.all)


class RentalRack:
    """All leases that one task's policy has rented, as they are now."""

    def __init__(self, renter: Renter, purpose: str) -> None:
        self._renter = renter
        self._roles = {f"{purpose}{role}-{number}": role for role in Role for number in (1, 2)}
        self._open: frozenset[str] = frozenset()
        self.parts: tuple[Part, ...] = ()
        self.look()

    def look(self) -> None:
        """Look at them anew. Raises ``StoreError``, ``CouldNotLookError``."""
        seen = [each for each in self._renter.seen() if each[0].purpose in self._roles]
        self._open = frozenset(intent.purpose for intent, _ in seen)
        self.parts = tuple(
            self._part(intent.purpose, lease, at_s=intent.at_s) for intent, lease in seen if lease is not None
        )

    def newest(self, *, among: Collection[str] | None = None) -> Parts:
        """Return the newest that is of use together, of those purposes alone where they are given."""
        usable = [part for part in self.parts if part.is_of_use and (among is None or part.purpose in among)]
        mains = [part for part in usable if part.role is Role.MAIN]
        if not mains:
            return Parts(main=usable[-1] if usable else None)
        more = [part for part in usable if part.role is Role.MORE and part.number > mains[-1].number]
        return Parts(main=mains[-1], more=more[-1] if more else None)

    def under(self, nodes: Collection[NodeId]) -> frozenset[str]:
        """Return the purposes of what a gang on ``nodes`` stands on; of the oldest in use where that cannot be told."""
        found = frozenset(part.purpose for part in self.parts if part.is_under(nodes))
        oldest = [part.purpose for part in self.parts if part.is_of_use][:1]
        return found or frozenset(oldest)

    def free_purpose(self, role: Role, *, taken: Collection[str]) -> str:
        """Return a purpose to rent under: one with nothing open if there is one, never one of ``taken``."""
        purposes = [purpose for purpose, each in self._roles.items() if each is role and purpose not in taken]
        return min(purposes, key=lambda purpose: (purpose in self._open, purpose))

    def rented(self, purpose: str, lease: Lease, *, at_s: float) -> Part:
        """Return a lease that was rented just now as a part."""
        return self._part(purpose, lease, at_s=at_s)

    def give_up(self, purposes: Collection[str] | None = None, *, but: Collection[str] = (), reason: str) -> None:
        """Give back what is rented under ``purposes`` (None: all) ``but`` those. Raises as ``Renter.give_up``."""
        among = [each for each in (self._roles if purposes is None else sorted(purposes)) if each not in but]
        each_of(among, lambda purpose: self._renter.give_up(purpose, reason=reason))

    def _part(self, purpose: str, lease: Lease, *, at_s: float) -> Part:
        return Part(purpose=purpose, role=self._roles[purpose], lease=lease, ordered_at_s=at_s)


def is_announced(lease: Lease) -> bool:
    """Whether the cloud has announced to take a node of it."""
    return any(node.notice is not None and node.notice.kind is NoticeKind.INTERRUPTION for node in lease.nodes)


def described(parts: Sequence[Part]) -> str:
    """Return in words what it is."""
    return " and ".join(_described(part.lease) for part in parts) or "nothing"


def _described(lease: Lease) -> str:
    pool = lease.pool
    where = f"{pool.cloud} {pool.zone or pool.region}"
    return f"{lease.num_nodes} {pool.capacity_type} nodes of {pool.shape} in {where} (lease {lease.id})"
