"""What a teardown does for one run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.closing import open_closing_driver
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.control.renting import CloudChoice
from airflow_llmsched.control.runs import MovedOnError
from airflow_llmsched.errors import LlmschedError, StoreError
from airflow_llmsched.provider.engine import deployment_fleet
from airflow_llmsched.provider.evaluation_run import stop_evaluation
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.metrics import gauge_rentals
from airflow_llmsched.provider.preflight_run import stop_preflight
from airflow_llmsched.provider.rentals import open_book, open_renter
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.provider.run_scope import RunScope

log = logging.getLogger(__name__)


def release_run(scope: RunScope, *, engine: str, engine_options: Mapping[str, Any], since_s: float) -> tuple[str, ...]:
    """End the run, stop what lives under its keys and give back what it rented; return what had been there. Idempotent.

    Needs neither spec nor data: they may never have come. Whatever fails on the engine keeps no rented machine, and
    what fails for one gang no other.
    ``since_s`` is when the teardown set out (Unix seconds).

    Raises:
        CouldNotLookError: the engine or a cloud cannot be asked: nothing may be assumed gone.
        LeftoverError: a cloud did not remove what the error names.
        MovedOnError: the run was begun anew since the teardown set out: its gang and machines are left alone.
    """
    is_over = True
    try:
        stopped = _stop_gangs(scope, engine=engine, engine_options=engine_options, since_s=since_s)
    except MovedOnError:
        is_over = False
        raise
    finally:
        given_back = _give_back(scope, since_s) if is_over else ()
    return (*stopped, *given_back)


def _give_back(scope: RunScope, since_s: float) -> tuple[str, ...]:
    renter, book = open_renter(scope), open_book(scope)
    try:
        return renter.release(since_s=since_s, others=_clouds(), deployment_id=scope.deployment_id)
    finally:
        with contextlib.suppress(StoreError):
            if book.rentals():
                gauge_rentals(scope.run_key, renter.spend(), num_open=len(book.open()))


def _clouds() -> list[CloudChoice]:
    """Return the clouds of the deployment's fleet file: where to look for what a run's book names no cloud of."""
    try:
        fleet = deployment_fleet()
    except LlmschedError as error:  # what the book knows is given back all the same
        log.warning("the fleet file names no clouds to look in: %s", error)
        return []
    return [] if fleet is None else [CloudChoice(name=name, options=each) for name, each in fleet.clouds.items()]


def _stop_gangs(scope: RunScope, *, engine: str, engine_options: Mapping[str, Any], since_s: float) -> tuple[str, ...]:
    settings = GangSettings(scope=scope, engine=engine, engine_options=engine_options)
    stopped: list[str] = []
    errors: list[LlmschedError] = []
    # The training comes first: it is what knows whether the run was begun anew meanwhile.
    for stop in (
        partial(_stop_training, settings, since_s),
        partial(stop_evaluation, settings),
        partial(stop_preflight, settings),
    ):
        try:
            stopped += stop()
        except MovedOnError:
            raise
        except LlmschedError as error:  # a damaged record of one keeps no other gang running
            log.error("%s", error)  # noqa: TRY400 - its words say it; the first one's story is the task's end
            errors.append(error)
    if errors:
        raise errors[0]
    return tuple(stopped)


def _stop_training(settings: GangSettings, since_s: float) -> tuple[str, ...]:
    scope, store, clock = settings.scope, settings.scope.store(), SystemClock()
    engine = open_run_engine(settings.engine, settings.engine_options)
    ground, unreadable = None, None
    try:
        ground = open_ground(
            engine, settings.engine, deployment_fleet(), store=store, clock=clock, runs=[scope.run_key]
        )
    except LlmschedError as error:  # what all runs claim may be damaged: that keeps no gang of this one running
        unreadable = error
    stopped = open_closing_driver(
        store, scope.run_key, engine=engine, clock=clock, dag_id=scope.dag_id, run_id=scope.run_id, ground=ground
    ).release(since_s=since_s)
    if unreadable is not None:
        raise unreadable
    return stopped
