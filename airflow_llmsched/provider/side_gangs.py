"""Drives a run's gangs beside its training, such as an evaluation: by the task's settings and the spec's launcher."""

from __future__ import annotations

from collections.abc import Callable

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.intents import LaunchIntents
from airflow_llmsched.control.single import MAX_ATTEMPTS, Holding, SingleRun, SingleSettings
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.ports import Engine
from airflow_llmsched.provider.channels import channel_dir, open_channel
from airflow_llmsched.provider.gang_run import GangSettings


def open_side_gang(
    settings: GangSettings,
    spec: WorkloadSpec,
    *,
    key: RunKey,
    engine: Engine,
    intents: LaunchIntents,
    make_gang: Callable[[AttemptKey], GangSpec],
    limit_s: float,
    max_attempts: int = MAX_ATTEMPTS,
    holding: Holding | None = None,
    keeps_claim: bool = False,
) -> SingleRun:
    """Return the driver of the gang under ``key``, which may go ``limit_s`` without a sign of progress.

    ``holding`` is what it claims; with ``keeps_claim`` that is given back by others.
    """
    return SingleRun(
        SingleSettings(
            key=key,
            generation=settings.generation,
            max_attempts=max_attempts,
            grace_s=spec.launcher.grace_s,
            start_limit_s=spec.launcher.start_limit_s,
            hang_limit_s=limit_s,
            poll_interval_s=settings.poll_interval_s,
            deadline_s=settings.deadline_s,
            lease_s=settings.lease_s,
            capacity_wait_s=settings.capacity_wait_s,
            run_dir=channel_dir(settings.scope),
            keeps_claim=keeps_claim,
        ),
        engine=engine,
        clock=SystemClock(),
        make_gang=make_gang,
        open_channel=open_channel,
        intents=intents,
        holding=holding,
    )
