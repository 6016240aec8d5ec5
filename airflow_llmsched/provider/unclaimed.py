"""What a run is planned on before it is launched, where runs share nodes."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_view import as_if_alone
from airflow_llmsched.control.open_arbiter import loads_of_others
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.ports import Engine, EngineFeature
from airflow_llmsched.provider.engine import deployment_fleet
from airflow_llmsched.provider.run_scope import RunScope


def when_its_turn_comes(tree: TopologyTree, workload: WorkloadSpec, *, engine: Engine) -> TopologyTree:
    """Return what a run is planned on before it is launched: one that waits its turn, on all that works.

    Others hold that now, and it is given its part when they have ended or made room. Any other run is planned on what
    is free, and so is one on an engine with a scheduler of its own.
    """
    if workload.queue is None or EngineFeature.OWN_QUEUE in engine.features:
        return tree
    return as_if_alone(tree)


def waiting_might_help(tree: TopologyTree, workload: WorkloadSpec, *, engine: Engine) -> bool:
    """Return whether others hold nodes that a run without a ``queue`` block could have waited for with one."""
    if workload.queue is not None or EngineFeature.OWN_QUEUE in engine.features:
        return False
    return as_if_alone(tree).num_usable_slots > tree.num_usable_slots


def loads_now(scope: RunScope, workload: WorkloadSpec, *, engine: Engine, name: str) -> Mapping[str, NetworkLoad]:
    """Return what other runs' gangs put on the network of ``engine``, which a task calls ``name``.

    See :func:`~airflow_llmsched.control.open_arbiter.loads_of_others`.
    """
    fleet, store, clock = deployment_fleet(), scope.store(), SystemClock()
    return loads_of_others(engine, name, fleet, workload, store=store, clock=clock, run=scope.run_key)
