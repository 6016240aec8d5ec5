"""Where a deployment's own calibration is kept: one object at its state root, which the planner looks for."""

from __future__ import annotations

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError, ObjectMissingError
from airflow_llmsched.planner.perf.calibration import Calibration, from_toml, over_packaged, to_toml
from airflow_llmsched.ports import ObjectStore

_SAVE = EffectPoint("calibration.save")

KEY = "calibration.toml"


def load(store: ObjectStore) -> Calibration | None:
    """Return the calibration at a state root, None if nothing was fitted there.

    Generations that were not measured there are as the packaged calibration has them.

    Raises:
        DataError: what is there cannot be read.
        StoreError: the store could not be asked.
    """
    try:
        text = store.get(KEY).decode("utf-8")
    except ObjectMissingError:
        return None
    except UnicodeDecodeError as error:
        raise DataError(f"{store.uri}/{KEY}: is no text; fit again with llmsched calibrate") from error
    return over_packaged(from_toml(text, name=f"{store.uri}/{KEY}"))


def save(store: ObjectStore, calibration: Calibration) -> None:
    """Keep a calibration at a state root, in place of the one before. Raises ``StoreError``."""
    with _SAVE:
        store.put(KEY, to_toml(calibration).encode("utf-8"))
