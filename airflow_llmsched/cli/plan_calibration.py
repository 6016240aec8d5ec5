"""``llmsched plan --state-root``: what ``llmsched calibrate`` kept there, so that plans are those of the deployment."""

from __future__ import annotations

from typing import Annotated

from airflow_llmsched.cli.state_root import state_root_option
from airflow_llmsched.errors import DataError, SpecError, StoreError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.calibration import Calibration

_KEPT_THERE = "The deployment's state root: plan with what llmsched calibrate kept there."
CalibratedOption = Annotated[str | None, state_root_option(_KEPT_THERE)]
StateRootOption = Annotated[str | None, state_root_option(f"{_KEPT_THERE} Needed for --fleet.")]


def reckoned_with(calibration: Calibration) -> str:
    """Return in words whose rates a plan goes by."""
    return f"Reckoned with the calibration of {calibration.fitted_on} at the state root."


def kept_calibration(state_root: str | None) -> Calibration | None:
    """Return the calibration at a state root; None without one there, or without a state root.

    Raises:
        SpecError: it cannot be read, or the state root not be asked.
    """
    if state_root is None:
        return None
    try:
        return calibration_file.load(open_store(state_root))
    except (DataError, StoreError) as error:
        raise SpecError(path="state-root", value=state_root, hint=f"its calibration cannot be read: {error}") from error
