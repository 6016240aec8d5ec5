"""What the reaper's task does on one engine, and in one cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.claim_reaping import ClaimReaper
from airflow_llmsched.control.deployment import deployment_id
from airflow_llmsched.control.lease_reaping import LeaseReaper
from airflow_llmsched.control.open_arbiter import open_ground, open_grounds
from airflow_llmsched.control.reaper import ReaperLimits
from airflow_llmsched.control.reaping import Reaper
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.provider.airflow_word import ask_airflow
from airflow_llmsched.provider.clouds import open_cloud
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.engine import deployment_fleet
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.telemetry.channel import open_witness


def open_reaper(engine: str, engine_options: Mapping[str, Any], limits: ReaperLimits) -> Reaper:
    """Return this deployment's reaper on one engine. Raises ``SpecError``, ``StoreError``."""
    store, opened, clock = open_store(state_root()), open_run_engine(engine, engine_options), SystemClock()
    return Reaper(
        store=store,
        deployment_id=deployment_id(store),
        engine=opened,
        open_witness=open_witness,
        ask=ask_airflow,
        clock=clock,
        limits=limits,
        ground=open_ground(opened, engine, deployment_fleet(), store=store, clock=clock),
    )


def open_claim_reapers(engine: str, engine_options: Mapping[str, Any], limits: ReaperLimits) -> tuple[ClaimReaper, ...]:
    """Return this deployment's reapers of claims to one engine; none where a scheduler of its own rules.

    They are several where its machines are in several grounds. Raises ``SpecError``, ``StoreError``.
    """
    store, opened, clock = open_store(state_root()), open_run_engine(engine, engine_options), SystemClock()
    return tuple(
        ClaimReaper(ground, store=store, engine=opened, ask=ask_airflow, clock=clock, limits=limits)
        for ground in open_grounds(opened, engine, deployment_fleet(), store=store, clock=clock)
    )


def open_lease_reaper(cloud: str, options: Mapping[str, Any]) -> LeaseReaper:
    """Return this deployment's reaper in one cloud. Raises ``SpecError``, ``StoreError``, ``CouldNotLookError``."""
    store = open_store(state_root())
    return LeaseReaper(
        store=store, deployment_id=deployment_id(store), cloud=open_cloud(cloud, options), clock=SystemClock()
    )
