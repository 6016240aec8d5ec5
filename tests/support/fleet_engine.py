"""A fleet of two engines under test, local ones by default, of which either can fall silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.domain.fleet import Cluster, ClusterLimits, cluster_of, own_name
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.engines.fleet.engine import FleetEngine
from airflow_llmsched.engines.fleet.members import Member
from airflow_llmsched.engines.fleet.words import parted
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.ports import Clock, Engine
from airflow_llmsched.telemetry.channel import open_witness
from airflow_llmsched.testing.engine_contract import EngineHarness, RankScript
from tests.support.local_engine import LocalHarness


class Silenceable:
    """An engine that answers nothing while it ``is_silent``; the gangs on it go on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.is_silent = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name == "render" or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_silent:
                raise CouldNotLookError("nobody answers at its address")
            return found(*args, **kwargs)

        return call


class FleetHarness(EngineHarness):
    """Clusters ``a`` and ``b`` of 2 nodes of 2 slots each; ``b`` may be another engine's, by its own harness."""

    engine: FleetEngine

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock | None = None,
        limits: ClusterLimits | None = None,
        silent_after_s: float = 60.0,
        other: EngineHarness | None = None,
    ) -> None:
        self.root = root
        self.clock = clock or SystemClock()
        self.store = LocalStore(str(root / "state"))
        self.clusters: dict[str, Any] = {"a": LocalHarness(root / "a"), "b": other or LocalHarness(root / "b")}
        self.gates = {name: Silenceable(each.engine) for name, each in self.clusters.items()}
        self._terms = {
            name: Cluster(
                name=name, engine=each.engine.name, limits=limits or ClusterLimits(), silent_after_s=silent_after_s
            )
            for name, each in self.clusters.items()
        }
        self.engine = self.opened(self.gates)

    def opened(self, engines: dict[str, Any]) -> FleetEngine:
        """Return a fleet of some clusters' engines, as another process would open it."""
        members = [Member(cluster=self._terms[name], engine=engine) for name, engine in engines.items()]
        return FleetEngine(members, store=self.store, clock=self.clock, open_witness=open_witness)

    def reopened(self) -> FleetEngine:
        return self.opened({name: each.reopened() for name, each in self.clusters.items()})

    def with_scripts(self, gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
        return self.clusters["a"].with_scripts(gang, scripts)

    def with_broken_command(self, gang: GangSpec) -> GangSpec:
        return self.clusters["a"].with_broken_command(gang)

    def channel_root(self, key: AttemptKey) -> str:
        return str(self.root / "channel" / key.name)

    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        self.clusters["a"].advance_until(predicate, limit_s)

    def now_s(self) -> float:
        return self.clock.now_s()

    def num_live_ranks(self, handle: GangHandle) -> int:
        cluster, inner = self.inner(handle)
        return 0 if cluster is None else cluster.num_live_ranks(inner)

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        self.clusters[cluster_of(node)].preempt(own_name(node), grace_s=grace_s, return_after_s=return_after_s)

    def lose(self, handle: GangHandle, node: NodeId) -> None:
        cluster, inner = self.inner(handle)
        assert cluster is not None
        cluster.lose(inner, own_name(node))

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return self.clusters["a"].at_once(calls)

    def inner(self, handle: GangHandle) -> tuple[Any, GangHandle]:
        """Return the cluster of a gang, if it has one, and its handle there."""
        name, native_id = parted(handle) or ("", "")
        cluster = self.clusters.get(name)
        engine = "" if cluster is None else cluster.engine.name
        return cluster, GangHandle(engine=engine, key=handle.key, native_id=native_id)

    def close(self) -> None:
        """End what the test left running."""
        for each in self.clusters.values():
            each.close()
