"""The engine of hosts on whatever machines a run has rented: which these are is read from the lease book at each call.

Every process sees the same hosts, and none is told them: not a trigger's arguments, not a worker that began before the
run moved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.control.lease_book import LeaseBook, RentalIntent
from airflow_llmsched.control.open_clouds import OpenCloud
from airflow_llmsched.control.rented_nodes import hosts_of
from airflow_llmsched.control.renting import Renter
from airflow_llmsched.domain.gang import FoundGang, GangHandle, GangSpec, GangStatus, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.ports import Clock, Engine, EngineFeature, FencingEngine

log = logging.getLogger(__name__)

OpenHosts = Callable[[Sequence[Mapping[str, Any]]], Engine]
"""Opens the engine of hosts with a list of them as plain JSON."""


class RentedEngine:
    """An ``Engine`` of the machines in all leases that ``books`` have open. Raises ``StoreError`` as they do, too.

    Args:
        books: the lease books of the runs that it is for, read at every call.
        open_hosts: see ``OpenHosts``.
        open_cloud: opens a cloud by name and options.
        clock: tells the time.
        slots: how many accelerators a node of each shape has.
        port: where the machines' sshd listens.
    """

    def __init__(
        self,
        books: Callable[[], Sequence[LeaseBook]],
        *,
        open_hosts: OpenHosts,
        open_cloud: OpenCloud,
        clock: Clock,
        slots: Mapping[str, int],
        port: int = 22,
    ) -> None:
        self._books = books
        self._open_hosts = open_hosts
        self._open_cloud = open_cloud
        self._clock = clock
        self._slots = slots
        self._port = port
        self._known: frozenset[str] | None = None
        self._awaited_at_s: dict[LeaseId, float] = {}
        self._engine = open_hosts(())
        self.name = self._engine.name
        self.features = self._engine.features | {EngineFeature.NODES_ARE_RENTED}
        self.late_duplicate_guard = self._engine.late_duplicate_guard

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return a printable request. Raises ``SpecError``."""
        return self._now().render(gang)

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Start the gang, as ``ports.Engine`` has it."""
        return self._now().submit(request, key=key)

    def abandon(self, key: AttemptKey) -> bool:
        """Use ``key`` up. Raises ``CouldNotLookError``."""
        return self._now().abandon(key)

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run. Raises ``CouldNotLookError``."""
        return self._now().find(key)

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang that has not ended. Raises ``CouldNotLookError``."""
        return self._now().find_all()

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each. Raises ``CouldNotLookError``."""
        return self._now().poll(handles)

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End every process of the gang on every machine that is still rented."""
        self._now().stop(handle, grace_s=grace_s)

    def fence(self, handle: GangHandle) -> frozenset[NodeId]:
        """Return the nodes on which nothing of an ended gang can be alive, their clouds being asked anew.

        A cloud that cannot be asked proves nothing, and what is known of its machines stays. Raises
        ``CouldNotLookError``.
        """
        known, self._known = self._known, None
        try:
            engine = self._now()
        except CouldNotLookError as error:
            log.warning("whether machines of %s are off is not known: %s", handle.key.name, error)
            engine, self._known = self._engine, known
        return engine.fence(handle) if isinstance(engine, FencingEngine) else frozenset()

    def topology(self) -> TopologyTree:
        """Return the rented machines with what is free now. Raises ``CouldNotLookError``."""
        return self._now().topology()

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote. Raises ``CouldNotLookError``."""
        return self._now().log_tail(handle, rank=rank, num_lines=num_lines)

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the last lines of several ranks. Raises ``CouldNotLookError``."""
        return self._now().log_tails(handle, ranks=ranks, num_lines=num_lines)

    def _now(self) -> Engine:
        """Return the engine of what is rented now. Clouds are asked only when the books have changed, or may soon."""
        books = self._books()
        rented = frozenset(str(each.intent.lease_id) for book in books for each in book.open())
        if rented == self._known:
            return self._engine
        seen = [each for book in books for each in Renter(book, open_cloud=self._open_cloud, clock=self._clock).seen()]
        leases = [lease for _, lease in seen if lease is not None]
        joins_until_s = {lease.id: self._joins_until_s(intent, lease) for intent, lease in seen if lease is not None}
        hosts = hosts_of(leases, slots=self._slots, port=self._port, joins_until_s=joins_until_s)
        self._engine = self._open_hosts(hosts)
        self._known = rented if len(leases) == len(rented) and all(map(_is_settled, leases)) else None
        return self._engine

    def _joins_until_s(self, intent: RentalIntent, lease: Lease) -> float:
        """Return until when machines may still come up: as long as the offer says, from when they were last awaited."""
        if lease.state is LeaseState.PENDING:
            self._awaited_at_s[lease.id] = self._clock.now_s()
        return self._awaited_at_s.get(lease.id, intent.at_s) + intent.offer.start_up_s


def _is_settled(lease: Lease) -> bool:
    """Whether nothing more is to be learnt of where its machines are."""
    return lease.state is not LeaseState.PENDING and all(node.address for node in lease.nodes)
