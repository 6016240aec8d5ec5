"""What a teardown does for one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.single import stop_all
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.provider.engine import open_engine
from airflow_llmsched.provider.evaluation_run import stop_evaluation
from airflow_llmsched.provider.gang_run import GangSettings, open_driver
from airflow_llmsched.provider.run_scope import RunScope

STOP_GRACE_S = 5.0


def release_run(scope: RunScope, *, engine: str, engine_options: Mapping[str, Any]) -> tuple[str, ...]:
    """End the run and stop what lives under its keys; return the names of what had been alive. Idempotent.

    Raises ``CouldNotLookError`` when the engine cannot be asked: nothing may be assumed gone.
    """
    settings = GangSettings(scope=scope, engine=engine, engine_options=engine_options)
    stopped = stop_evaluation(settings)
    return (*stopped, *_release_training(settings, scope.run_key))


def _release_training(settings: GangSettings, key: RunKey) -> tuple[str, ...]:
    scope = settings.scope
    if Journal(scope.store(), key).read():
        try:
            return open_driver(settings).release()
        except (DataError, SpecError):
            # Its spec or data never came, or the spec was replaced by one that cannot be trained: that makes no driver,
            # but there may be a gang.
            pass
    return stop_all(open_engine(settings.engine, settings.engine_options), key, grace_s=STOP_GRACE_S)
