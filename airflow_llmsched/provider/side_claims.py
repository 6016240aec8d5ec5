"""Opens what a gang beside a run's training claims: an evaluation, or checks of the run's nodes."""

from __future__ import annotations

from collections.abc import Callable

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_side import SideArbiter, SideClaim
from airflow_llmsched.control.arbiter_state import launch_number
from airflow_llmsched.control.arbiter_turn import START_S
from airflow_llmsched.control.open_arbiter import open_ground, open_side_arbiter
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.ports import Engine
from airflow_llmsched.provider.channels import open_channel
from airflow_llmsched.provider.engine import deployment_fleet
from airflow_llmsched.provider.gang_run import GangSettings


def open_claims(
    settings: GangSettings,
    *,
    key: RunKey,
    engine: Engine,
    spec: WorkloadSpec | None = None,
    runs_for_s: float | None = None,
    number_of: Callable[[AttemptKey], int] = launch_number,
) -> SideArbiter | None:
    """Return whoever claims as ``key`` for the run of ``settings``; None where the engine's own scheduler rules.

    Without a ``spec`` it can only give back. ``runs_for_s`` is the longest that the gang is expected to run.
    """
    scope = settings.scope
    fleet, store, clock = deployment_fleet(), scope.store(), SystemClock()
    ground = open_ground(engine, settings.engine, fleet, store=store, clock=clock, claims=spec is not None, runs=[key])
    if ground is None:
        return None
    claim = SideClaim(
        key=key,
        run=scope.run_key,
        queue=None if spec is None else spec.queue,
        dag_id=scope.dag_id,
        run_id=scope.run_id,
        runs_for_s=None if runs_for_s is None else runs_for_s + START_S,
        yield_s=(0.0 if spec is None else spec.launcher.grace_s) + START_S,
    )
    return open_side_arbiter(
        ground,
        claim=claim,
        engine=engine,
        fleet=fleet,
        store=store,
        open_channel=open_channel,
        clock=clock,
        number_of=number_of,
    )
