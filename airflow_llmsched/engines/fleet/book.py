"""What a fleet has to remember of itself: which attempt went to which cluster, which cluster is silent, and its nodes.

An attempt's entry is written once, before its cluster is asked for anything. So however often an attempt is submitted
or given up, and by whom, it is one cluster's, or nobody's; and what may live on a cluster is known while it is silent.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, StoreError
from airflow_llmsched.ports import ObjectStore

_CLAIM = EffectPoint("fleet.claim")
_SUBMITTED = EffectPoint("fleet.submitted")
_END = EffectPoint("fleet.end")
_SILENT = EffectPoint("fleet.silent")
_HEARD = EffectPoint("fleet.heard")
_REMEMBER = EffectPoint("fleet.remember")

_ENTRY = "entry.json"

MAX_GAP_S = 120.0
"""Failed looks further apart than this are no one silence: nobody knows what was in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One attempt. ``cluster`` is empty for one that was given up before it had any. Times are Unix seconds.

    ``nodes`` are by the names of the cluster, ``num_slots`` the slots on all of them. ``lease_s`` is how long its
    agents go on without being renewed; None: for ever.
    """

    key: AttemptKey
    cluster: str
    at_s: float
    nodes: tuple[NodeId, ...] = ()
    num_slots: int = 0
    channel_root: str = ""
    lease_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silence:
    since_s: float
    seen_s: float


class Book:
    """Records below ``fleet/`` of a deployment's store. Raises ``StoreError`` whenever it cannot be read or written."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._native_ids: dict[AttemptKey, str] = {}
        self._ends: dict[AttemptKey, GangPhase] = {}

    def claim(self, entry: Entry) -> Entry:
        """Write the attempt's entry unless there is one; return the one that holds, whoever's it is."""
        name = _of(entry.key, _ENTRY)
        try:
            with _CLAIM:
                self._store.create(name, codec.to_json(entry))
        except ObjectExistsError:
            return self._read(name)
        return entry

    def find(self, key: AttemptKey) -> Entry | None:
        """Return the attempt's entry."""
        try:
            return self._read(_of(key, _ENTRY))
        except ObjectMissingError:
            return None

    def entries(self, run: RunKey) -> tuple[Entry, ...]:
        """Return the entries of a run, oldest attempt first."""
        names = [info.key for info in self._store.list(f"fleet/gangs/{run}/") if info.key.endswith(f"/{_ENTRY}")]
        return tuple(sorted(map(self._read, names), key=lambda each: (each.key.generation, each.key.attempt)))

    def note_submitted(self, key: AttemptKey, native_id: str) -> None:
        """Remember the gang's id on its cluster, for when that is silent."""
        if self._native_ids.get(key) != native_id:
            with _SUBMITTED:
                self._store.put(_of(key, "native-id"), native_id.encode())
            self._native_ids[key] = native_id

    def native_id(self, key: AttemptKey) -> str | None:
        """Return the gang's id on its cluster, None if nobody lived to note it."""
        with contextlib.suppress(ObjectMissingError):
            return self._store.get(_of(key, "native-id")).decode()
        return None

    def note_end(self, key: AttemptKey, status: GangStatus) -> None:
        """Remember how a gang ended, or that it was given up as lost: what to say of it while its cluster is silent."""
        if self._ends.get(key) is not status.phase:
            with _END:
                self._store.put(_of(key, "end.json"), codec.to_json(status))
            self._ends[key] = status.phase

    def end(self, key: AttemptKey) -> GangStatus | None:
        """Return how a gang ended, as far as anyone noted it."""
        with contextlib.suppress(ObjectMissingError, ValidationError):
            return codec.from_json(GangStatus, self._store.get(_of(key, "end.json")))
        return None

    def note_silent(self, cluster: str, *, now_s: float) -> float:
        """Note that a cluster could not be asked just now; return since when it has been silent."""
        known = self._silence(cluster)
        is_one = known is not None and now_s - known.seen_s <= MAX_GAP_S
        silence = (
            replace(known, seen_s=now_s) if known is not None and is_one else _Silence(since_s=now_s, seen_s=now_s)
        )
        with _SILENT:
            self._store.put(_silence_name(cluster), codec.to_json(silence))
        return silence.since_s

    def note_heard(self, cluster: str) -> None:
        """Note that a cluster was heard: no silence goes on."""
        if self._silence(cluster) is not None:
            with _HEARD:
                self._store.delete(_silence_name(cluster))

    def remember(self, cluster: str, tree: TopologyTree) -> None:
        """Keep a cluster's nodes, for when it is silent."""
        data = codec.to_json(tree)
        try:
            known = self._store.get(_tree_name(cluster))
        except ObjectMissingError:
            known = b""
        if known != data:
            with _REMEMBER:
                self._store.put(_tree_name(cluster), data)

    def remembered(self, cluster: str) -> TopologyTree | None:
        """Return a cluster's nodes as it named them last, None if it never did, or nobody can read it."""
        with contextlib.suppress(ObjectMissingError, ValidationError):
            return codec.from_json(TopologyTree, self._store.get(_tree_name(cluster)))
        return None

    def _silence(self, cluster: str) -> _Silence | None:
        with contextlib.suppress(ObjectMissingError, ValidationError):
            return codec.from_json(_Silence, self._store.get(_silence_name(cluster)))
        return None

    def _read(self, name: str) -> Entry:
        try:
            return codec.from_json(Entry, self._store.get(name))
        except ValidationError as error:
            told = f"{self._store.uri}/{name} is damaged: which cluster has its gang is unknown"
            raise StoreError(f"{told}; restore it") from error


def _of(key: AttemptKey, name: str) -> str:
    return f"fleet/gangs/{key.run}/g{key.generation}-a{key.attempt}/{name}"


def _silence_name(cluster: str) -> str:
    return f"fleet/clusters/{cluster}/silence.json"


def _tree_name(cluster: str) -> str:
    return f"fleet/clusters/{cluster}/topology.json"
