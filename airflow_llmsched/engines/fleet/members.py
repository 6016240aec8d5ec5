"""A fleet's clusters as they answer, or do not; and what is to be believed of a gang while its cluster is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from airflow_llmsched.domain.fleet import Cluster
from airflow_llmsched.domain.gang import GangStatus
from airflow_llmsched.engines.fleet.book import Book, Entry
from airflow_llmsched.engines.fleet.words import heard_by_agents, lost_with_cluster
from airflow_llmsched.errors import CouldNotLookError, TransientError
from airflow_llmsched.ports import ChannelWitness, Clock, Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A cluster and the engine that it was opened as."""

    cluster: Cluster
    engine: Engine

    @property
    def name(self) -> str:
        """Return the cluster's name."""
        return self.cluster.name


class SilentClusterError(CouldNotLookError):
    """Look again: a cluster did not answer, as it has not since ``since_s`` (Unix seconds)."""

    def __init__(self, cluster: str, error: TransientError, *, since_s: float) -> None:
        self.since_s = since_s
        super().__init__(f"cluster {cluster} does not answer: {error}")


class Members:
    """The clusters of a fleet by name."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        book: Book,
        clock: Clock,
        open_witness: Callable[[str], ChannelWitness],
    ) -> None:
        self._members: Mapping[str, Member] = {member.name: member for member in members}
        self._book = book
        self._clock = clock
        self._open_witness = open_witness

    @property
    def all(self) -> tuple[Member, ...]:
        """All clusters of the fleet."""
        return tuple(self._members.values())

    def get(self, name: str) -> Member | None:
        """Return a cluster of the fleet, None for one that is none of it, or no more."""
        return self._members.get(name)

    def ask(self, member: Member, call: Callable[[], T]) -> T:
        """Return what ``call`` of the cluster's engine returns. Raises ``SilentClusterError`` where it cannot look."""
        try:
            return call()
        except TransientError as error:
            since_s = self._book.note_silent(member.name, now_s=self._clock.now_s())
            raise SilentClusterError(member.name, error, since_s=since_s) from error

    def heard(self, member: Member) -> None:
        """Note that a live gang of the cluster was seen. Less is no sign: an engine may answer from its records."""
        self._book.note_heard(member.name)

    def live(self, member: Member) -> list[Entry]:
        """Return the entries of our gangs that live on a cluster. Raises ``SilentClusterError``."""
        found = self.ask(member, member.engine.find_all)
        entries = [self._book.find(gang.handle.key) for gang in found]
        return [each for each in entries if each is not None and each.cluster == member.name]

    def believed(self, entry: Entry, silence: SilentClusterError | None) -> GangStatus | None:
        """Return what is to be believed of a gang whose cluster does not answer; None: nothing yet.

        Its end, if anyone saw it. Else, once cluster and agents have been silent for as long as the fleet's file says,
        that it is lost, and may be alive. A gang whose agents go on for ever unrenewed is never lost like that: nothing
        would end it before a successor starts. Without ``silence`` the cluster is no more in the fleet's file.
        """
        end = self._book.end(entry.key)
        if end is not None:
            return end
        now_s = self._clock.now_s()
        if silence is None:
            reason = f"cluster {entry.cluster} is not in the fleet's file any more"
            return self._given_up(entry, now_s=now_s, reason=reason)
        member = self._members[entry.cluster]
        limit_s, silent_s = member.cluster.silent_after_s, now_s - silence.since_s
        heard_s = self._last_sign_s(entry)
        if heard_s is not None and now_s - heard_s < limit_s:
            return heard_by_agents(entry, now_s=now_s, reason=f"{silence}; the gang's agents report")
        if silent_s < limit_s or entry.lease_s is None:
            return None
        reason = f"cluster {entry.cluster} has not answered for {silent_s:.0f} s, nor have the gang's agents reported"
        return self._given_up(entry, now_s=now_s, reason=reason)

    def _given_up(self, entry: Entry, *, now_s: float, reason: str) -> GangStatus:
        status = lost_with_cluster(entry, now_s=now_s, reason=reason)
        self._book.note_end(entry.key, status)
        return status

    def _last_sign_s(self, entry: Entry) -> float | None:
        """Return when the gang's agents last reported; None before they did, or where nobody can tell."""
        try:
            return self._open_witness(entry.channel_root).last_sign_s()
        except TransientError:
            return None
