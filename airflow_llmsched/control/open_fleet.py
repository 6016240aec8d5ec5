"""Opens a fleet, or one cluster of it, as an engine. For workers, triggerers and the command line alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.domain.fleet import FLEET, Cluster, Fleet
from airflow_llmsched.domain.gang import FoundGang, GangHandle, GangSpec, GangStatus, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.engines.fleet.engine import FleetEngine
from airflow_llmsched.engines.fleet.members import Member
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.ports import ChannelWitness, Clock, Engine, EngineFeature, LateDuplicateGuard, ObjectStore

OpenEngine = Callable[[str, Mapping[str, Any]], Engine]
"""Takes an adapter's name and its options. May raise ``SpecError``, ``CouldNotLookError``."""


def names_cluster(engine: str, fleet: Fleet | None) -> bool:
    """Whether ``engine`` is a fleet or a cluster of it, and no adapter."""
    return engine == FLEET or (fleet is not None and fleet.cluster(engine) is not None)


def clusters_of(engine: str, fleet: Fleet | None) -> tuple[Cluster, ...]:
    """Return the clusters that ``engine`` stands for. Raises ``SpecError`` where there are none."""
    if fleet is None:
        hint = "needs a fleet file: set [llmsched] fleet_file in Airflow's configuration, or give --fleet"
        raise SpecError(path="engine", value=engine, hint=hint)
    clusters = tuple(each for each in fleet.clusters if engine in (FLEET, each.name))
    if not clusters:
        raise SpecError(path="engine", value=engine, hint="is no cluster of the fleet file, which may list none")
    return clusters


def open_fleet(
    engine: str,
    fleet: Fleet,
    *,
    store: ObjectStore,
    clock: Clock,
    open_engine: OpenEngine,
    open_witness: Callable[[str], ChannelWitness],
    root: str,
) -> FleetEngine:
    """Return the clusters that ``engine`` stands for as one engine.

    One that is alone, too, and the others beside it, on which nothing is started: a run's gangs are found wherever they
    are, however its next one is asked for. ``root`` is the folder below which an adapter that keeps files has one of
    its own for each cluster. One that cannot be opened now is silent. Raises ``SpecError``, naming the cluster.
    """
    return FleetEngine(
        [Member(cluster=each, engine=_open(each, open_engine, root)) for each in fleet.clusters],
        store=store,
        clock=clock,
        open_witness=open_witness,
        only=[each.name for each in clusters_of(engine, fleet)],
    )


def _open(cluster: Cluster, open_engine: OpenEngine, root: str) -> Engine:
    try:
        return open_engine(cluster.engine, {"root": f"{root}/{cluster.name}", **cluster.options})
    except SpecError as error:
        path = f"cluster {cluster.name}: {error.path}"
        raise SpecError(path=path, value=error.value, hint=error.hint) from error
    except CouldNotLookError as error:
        return _Unopened(cluster.engine, error)


class _Unopened:
    """An engine that could not be opened now: to a fleet it is silent, and keeps nobody from the others."""

    # ruff: noqa: ARG002  (the port's signatures)

    late_duplicate_guard = LateDuplicateGuard.RECORD
    features = frozenset(EngineFeature)

    def __init__(self, name: str, error: CouldNotLookError) -> None:
        self.name = name
        self._error = error

    def render(self, gang: GangSpec) -> LaunchRequest:
        raise self._error

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        raise self._error

    def abandon(self, key: AttemptKey) -> bool:
        raise self._error

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        raise self._error

    def find_all(self) -> Sequence[FoundGang]:
        raise self._error

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        raise self._error

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        raise self._error

    def topology(self) -> TopologyTree:
        raise self._error

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        raise self._error

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        raise self._error
