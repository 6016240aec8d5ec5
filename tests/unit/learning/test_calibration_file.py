from __future__ import annotations

import pytest

from airflow_llmsched.errors import DataError
from airflow_llmsched.learning.calibration_file import KEY, load, save
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.calibration import Calibration, FittedKind, over_packaged
from airflow_llmsched.planner.perf.rates import Rates

CALIBRATION = Calibration(
    fitted_on="2026-11-30",
    kinds={
        "hopper": FittedKind(
            rates=Rates(matmul_ratio=0.5), error_ratio=0.1, left_out_error_ratio=0.04, num_rows_by_source={"run-1": 2}
        )
    },
)


def test_what_was_kept_is_found_again_and_replaced_by_the_next(tmp_path):
    store = open_store(str(tmp_path))
    assert load(store) is None
    save(store, Calibration(fitted_on="2026-01-01"))
    save(store, CALIBRATION)
    assert load(store) == over_packaged(CALIBRATION)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / KEY).write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=KEY):
        load(open_store(str(tmp_path)))
