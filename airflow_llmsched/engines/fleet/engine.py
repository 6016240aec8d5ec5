"""All clusters of a fleet as one engine: a gang runs on one of them, and its attempt's entry in the book says on which.

A cluster that does not answer keeps nobody from the others, but what may live on it is never taken for gone: its gangs
are "could not look" until cluster and agents have been silent for long enough, and then lost, with all their nodes
unconfirmed, so that a successor waits until their agents must have ended them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from airflow_llmsched import codec
from airflow_llmsched.domain.fleet import FLEET, cluster_of, fleet_node
from airflow_llmsched.domain.gang import (
    FoundGang,
    GangHandle,
    GangPhase,
    GangSpec,
    GangStatus,
    LaunchRequest,
    abandoned_status,
)
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.engines.fleet import words
from airflow_llmsched.engines.fleet.allotments import Allotments
from airflow_llmsched.engines.fleet.book import Book, Entry
from airflow_llmsched.engines.fleet.claims import Claims
from airflow_llmsched.engines.fleet.limits import within_limits
from airflow_llmsched.engines.fleet.members import Member, Members, SilentClusterError
from airflow_llmsched.engines.fleet.topology import ClusterView, fleet_tree
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, LaunchError, SpecError
from airflow_llmsched.ports import (
    ChannelWitness,
    Clock,
    EngineFeature,
    FencingEngine,
    InventoryEngine,
    LateDuplicateGuard,
    ObjectStore,
)

_UNKNOWN = "?"
"""Stands for the id of a gang that nobody lived to note, on a cluster that cannot be asked for it."""


class FleetEngine:
    """An ``Engine`` over others, opened already. ``features`` are what all of them can do.

    Args:
        members: The clusters, at least one.
        store: The deployment's store, for the book.
        clock: Whose time silences are measured by.
        open_witness: Opens what agents of a channel last said.
        only: The clusters that gangs are to run on, and are looked for on when no run is named; None: all of them.
    """

    name = FLEET
    late_duplicate_guard = LateDuplicateGuard.RECORD

    def __init__(
        self,
        members: Sequence[Member],
        *,
        store: ObjectStore,
        clock: Clock,
        open_witness: Callable[[str], ChannelWitness],
        only: Collection[str] | None = None,
    ) -> None:
        self._offered = [each for each in members if only is None or each.name in only]
        if not self._offered:
            raise SpecError(path="clusters", hint="must name a cluster: a fleet without any runs nothing")
        features = (each.engine.features for each in self._offered)
        self.features: frozenset[EngineFeature] = frozenset.intersection(*features)
        self._book = Book(store)
        self._members = Members(members, book=self._book, clock=clock, open_witness=open_witness)
        self._claims = Claims(
            Allotments(store, clock=clock), book=self._book, members=self._members, clock=clock, give_up=self.abandon
        )
        self._clock = clock
        self._all = tuple(members)

    @property
    def inventory(self) -> Mapping[NodeId, str]:
        """Machines of all clusters that say which they have, by what the fleet calls them."""
        return {
            fleet_node(member.name, node): machine
            for member in self._all
            if isinstance(member.engine, InventoryEngine)
            for node, machine in member.engine.inventory.items()
        }

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return a printable request. Pure. Raises ``SpecError`` for a gang that is not on one cluster."""
        clusters = sorted({cluster_of(node) for node in gang.placement.nodes})
        member = self._members.get(clusters[0]) if len(clusters) == 1 else None
        if member is None or member not in self._offered:
            hint = f"must be on nodes of one of the fleet's clusters: {', '.join(each.name for each in self._offered)}"
            raise SpecError(path="placement", value=", ".join(clusters), hint=hint)
        placement = words.own_placement(gang.placement)
        close = words.own_closeness(gang.close, member.cluster.level_names)
        excluded = words.own_nodes(gang.excluded, member.name)
        inner = member.engine.render(replace(gang, placement=placement, close=close, excluded=excluded))
        entry = Entry(
            key=gang.key,
            cluster=member.name,
            at_s=0.0,
            nodes=placement.nodes,
            num_slots=sum(len(placement.held_on(node)) for node in placement.nodes),
            channel_root=gang.channel_root,
            lease_s=gang.lease_s,
        )
        body = {"entry": codec.to_plain(entry), "engine": inner.engine, "request": dict(inner.body)}
        return LaunchRequest(engine=self.name, key=gang.key, body=body)

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Start the gang on its cluster, or return the handle of the gang already started under ``key``.

        Where the cluster falls silent for good in between, the handle is that of a gang that is lost. Raises as the
        port says, and ``CapacityError`` for what a limit forbids.
        """
        if request.engine != self.name or request.key != key:
            raise SpecError(
                path="request", value=request.key.name, hint=f"was not rendered by this engine for {key.name}"
            )
        wanted = replace(codec.from_plain(Entry, request.body["entry"]), at_s=self._clock.now_s())
        entry = self._claim(wanted)
        if not entry.cluster:
            raise AbandonedError(f"attempt {key.name} was given up before it was submitted: nothing is started")
        member = self._member(entry)
        if entry.cluster != wanted.cluster:
            return self._standing(member, entry)
        inner = LaunchRequest(engine=request.body["engine"], key=key, body=request.body["request"])
        try:
            handle = self._members.ask(member, lambda: member.engine.submit(inner, key=key))
        except SilentClusterError as silence:
            status = self._members.believed(entry, silence)
            if status is None or not status.phase.ended:
                raise
            return self._remembered(entry)
        except (CapacityError, LaunchError) as error:
            if isinstance(error, CapacityError):
                self._claims.free(member, key)  # nothing was started, and whoever waits holds nothing meanwhile
            told = words.named_in_fleet(str(error), member.name, entry.nodes)
            raise type(error)(f"cluster {member.name}: {told}") from error
        self._book.note_submitted(key, handle.native_id)
        return words.fleet_handle(member.name, key, handle.native_id)

    def abandon(self, key: AttemptKey) -> bool:
        """Use ``key`` up, on its cluster where it has one. Raises ``CouldNotLookError``."""
        entry = self._book.claim(Entry(key=key, cluster="", at_s=self._clock.now_s()))
        member = self._members.get(entry.cluster)
        if member is None:
            self._free_everywhere(key, but=entry.cluster)
            return not entry.cluster
        try:
            is_given_up = self._members.ask(member, lambda: member.engine.abandon(key))
        except SilentClusterError as silence:
            if _has_ended(self._members.believed(entry, silence)):
                return False  # it is found as a gang that was lost, and fenced as such
            raise
        self._free_everywhere(key, but="" if is_given_up else entry.cluster)
        return is_given_up

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run on any cluster that had one, oldest first.

        Raises ``CouldNotLookError`` for a silent cluster, unless it is known, or has been silent for long enough to be
        assumed, what became of the run's gangs there.
        """
        entries = self._book.entries(key)
        found: dict[AttemptKey, GangHandle] = {}
        for cluster in dict.fromkeys(entry.cluster for entry in entries):
            own = [entry for entry in entries if entry.cluster == cluster]
            found |= {handle.key: handle for handle in self._find_on(cluster, key, own)}
        return sorted(found.values(), key=lambda handle: (handle.key.generation, handle.key.attempt))

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang that has not ended, oldest first. Raises ``CouldNotLookError`` when a cluster is silent."""
        found = [
            replace(gang, handle=words.fleet_handle(member.name, gang.handle.key, gang.handle.native_id))
            for member in self._offered
            for gang in self._members.ask(member, member.engine.find_all)
        ]
        return sorted(found, key=lambda gang: gang.submitted_at_s)

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each handle by one call for each cluster. Those of a silent one are left out, or lost.

        Raises ``CouldNotLookError`` when none could be looked at.
        """
        seen: dict[GangHandle, GangStatus] = {}
        failure: CouldNotLookError | None = None
        by_cluster: dict[str, list[GangHandle]] = {}
        for handle in handles:
            cluster = (words.parted(handle) or (_UNKNOWN, ""))[0]
            by_cluster.setdefault(cluster, []).append(handle)
        for cluster, own in by_cluster.items():
            member = self._members.get(cluster)
            try:
                seen |= self._poll_without(own) if member is None else self._poll_on(member, own)
            except SilentClusterError as silence:
                failure = silence
                told = {handle: self._believed(handle, silence) for handle in own}
                seen |= {handle: status for handle, status in told.items() if status is not None}
        if failure is not None and not seen:
            raise failure
        return seen

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End every process of the gang within ``grace_s`` + 5 s. Silent for one that was lost with its cluster."""
        member, native = self._parts(handle)
        if member is None:
            return
        try:
            inner = self._inner(member, handle, native)
            if inner is not None:
                self._members.ask(member, lambda: member.engine.stop(inner, grace_s=grace_s))
        except SilentClusterError as silence:
            if not _has_ended(self._believed(handle, silence)):
                raise

    def fence(self, handle: GangHandle) -> frozenset[NodeId]:
        """Return the nodes of an ended gang on which its cluster proves that nothing of it can be alive.

        None where the cluster cannot prove it, or does not answer.
        """
        member, native = self._parts(handle)
        if member is None or not isinstance(member.engine, FencingEngine):
            return frozenset()
        engine = member.engine
        try:
            inner = self._inner(member, handle, native)
            nodes = frozenset() if inner is None else self._members.ask(member, lambda: engine.fence(inner))
        except SilentClusterError:
            return frozenset()
        return frozenset(fleet_node(member.name, node) for node in nodes)

    def topology(self) -> TopologyTree:
        """Return all clusters' nodes below one level, ``cluster``, with what is free now and within their limits.

        A cluster that does not answer is there as it was seen last, and unusable. Raises ``CouldNotLookError`` when
        none answers.
        """
        views = [self._view(member) for member in self._offered]
        if all(view.silence for view in views):
            raise CouldNotLookError("; ".join(f"cluster {view.cluster.name}: {view.silence}" for view in views))
        return fleet_tree(views)

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote; empty when it wrote nothing. Raises ``CouldNotLookError``."""
        return self.log_tails(handle, ranks=[rank], num_lines=num_lines)[rank]

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the last lines of several ranks, by one call of their cluster. Raises ``CouldNotLookError``."""
        member, native = self._parts(handle)
        inner = None if member is None else self._inner(member, handle, native)
        if member is None or inner is None:
            return dict.fromkeys(ranks, "")
        return self._members.ask(member, lambda: member.engine.log_tails(inner, ranks=ranks, num_lines=num_lines))

    def _claim(self, wanted: Entry) -> Entry:
        """Return the entry that holds for an attempt, which is within its cluster's limits. Raises ``CapacityError``.

        The part of the cluster comes first: nobody has an entry who was refused one.
        """
        known, member = self._book.find(wanted.key), self._member(wanted)
        if known is None:
            self._claims.hold(member, wanted)
        elif known.cluster == wanted.cluster:
            with contextlib.suppress(SilentClusterError):  # what is to be believed of a gang there is said below
                self._claims.hold(member, known)
        entry = self._book.claim(wanted)
        if entry.cluster != wanted.cluster:
            self._claims.free(member, wanted.key)
        return entry

    def _free_everywhere(self, key: AttemptKey, *, but: str) -> None:
        """Free what an attempt holds where it cannot run any more: whoever held it may have died before its entry."""
        for member in self._members.all:
            if member.name != but:
                self._claims.free(member, key)

    def _member(self, entry: Entry) -> Member:
        member = self._members.get(entry.cluster)
        if member is None:
            hint = f"is the cluster of {entry.key.name}, and not in the fleet's file any more"
            raise SpecError(path="cluster", value=entry.cluster, hint=hint)
        return member

    def _standing(self, member: Member, entry: Entry) -> GangHandle:
        """Return the gang of an attempt that was claimed for a cluster before.

        Where that has none, whoever claimed it may stand still and submit it later: it is used up there. Raises
        ``AbandonedError``.
        """
        for _ in range(2):
            handles = self._find_on(member.name, entry.key.run, [entry])
            found = next((handle for handle in handles if handle.key == entry.key), None)
            if found is not None:
                return found
            if self.abandon(entry.key):
                told = f"attempt {entry.key.name} was claimed for cluster {member.name} and never submitted there"
                raise AbandonedError(f"{told}: it is given up, and nothing is started")
        return self._remembered(entry)

    def _find_on(self, cluster: str, run: RunKey, entries: Sequence[Entry]) -> list[GangHandle]:
        member = self._members.get(cluster)
        if member is None:
            return [self._remembered(entry) for entry in entries]
        try:
            handles = self._members.ask(member, lambda: member.engine.find(run))
        except SilentClusterError as silence:
            if any(self._members.believed(entry, silence) is None for entry in entries):
                raise
            return [self._remembered(entry) for entry in entries]
        return [words.fleet_handle(cluster, handle.key, handle.native_id) for handle in handles]

    def _remembered(self, entry: Entry) -> GangHandle:
        native = self._book.native_id(entry.key) if entry.cluster else entry.key.name
        return words.fleet_handle(entry.cluster, entry.key, native or _UNKNOWN)

    def _parts(self, handle: GangHandle) -> tuple[Member | None, str]:
        cluster, native = words.parted(handle) or ("", "")
        return self._members.get(cluster), native

    def _inner(self, member: Member, handle: GangHandle, native: str) -> GangHandle | None:
        """Return the cluster's own handle, None for a gang that it never had. Raises ``SilentClusterError``."""
        if native != _UNKNOWN:
            return GangHandle(engine=member.engine.name, key=handle.key, native_id=native)
        found = self._members.ask(member, lambda: member.engine.find(handle.key.run))
        return next((each for each in found if each.key == handle.key), None)

    def _poll_on(self, member: Member, handles: Sequence[GangHandle]) -> dict[GangHandle, GangStatus]:
        inner = {handle: self._inner(member, handle, self._parts(handle)[1]) for handle in handles}
        asked = [each for each in inner.values() if each is not None]
        told = self._members.ask(member, lambda: member.engine.poll(asked)) if asked else {}
        if any(not status.phase.ended for status in told.values()):
            self._members.heard(member)
        seen: dict[GangHandle, GangStatus] = {}
        for handle, each in inner.items():
            if each is None:
                seen[handle] = self._never_was(handle)
            elif each in told:
                seen[handle] = words.fleet_status(told[each], member.name)
                if seen[handle].phase.ended and not seen[handle].unconfirmed_nodes:
                    self._book.note_end(handle.key, seen[handle])
                    self._claims.free(member, handle.key)
        return seen

    def _poll_without(self, handles: Sequence[GangHandle]) -> dict[GangHandle, GangStatus]:
        """Return the status of gangs whose handles name no cluster, or one that is no more in the fleet."""
        seen = {}
        for handle in handles:
            entry = self._book.find(handle.key)
            if entry is None or words.parted(handle) is None:
                seen[handle] = self._never_was(handle)
            elif not entry.cluster:
                seen[handle] = abandoned_status(observed_at_s=self._clock.now_s(), at_s=entry.at_s)
            else:
                seen[handle] = self._members.believed(entry, None) or self._never_was(handle)
        return seen

    def _never_was(self, handle: GangHandle) -> GangStatus:
        reason = f"there is no attempt {handle.key.name} on {(words.parted(handle) or ('',))[0] or 'this fleet'}"
        now_s = self._clock.now_s()
        return GangStatus(phase=GangPhase.LOST, observed_at_s=now_s, fault=FaultKind.GANG_LOST, reason=reason)

    def _believed(self, handle: GangHandle, silence: SilentClusterError) -> GangStatus | None:
        entry = self._book.find(handle.key)
        return None if entry is None else self._members.believed(entry, silence)

    def _view(self, member: Member) -> ClusterView:
        try:
            tree = self._members.ask(member, member.engine.topology)
            limits = member.cluster.limits
            live = self._claims.taken(member) if limits.are_set else []
        except SilentClusterError as silence:
            return ClusterView(
                cluster=member.cluster, tree=self._book.remembered(member.name), silence=str(silence.__cause__)
            )
        self._book.remember(member.name, tree)
        return ClusterView(cluster=member.cluster, tree=within_limits(tree, limits, live))


def _has_ended(status: GangStatus | None) -> bool:
    return status is not None and status.phase.ended
