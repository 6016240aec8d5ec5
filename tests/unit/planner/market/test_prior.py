from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.market.forecast import PHASE_START_S
from airflow_llmsched.planner.market.prior import default_hazards


def test_the_prior_is_a_probability_and_every_hazard_falls_with_age() -> None:
    model = default_hazards()
    assert model.prior_K.sum() == pytest.approx(1.0)
    assert (model.prior_K > 0).all()
    for table_KF in (model.loss_per_s_KF, model.return_per_s_KF):
        assert table_KF.shape == (16, len(PHASE_START_S))
        assert (np.diff(table_KF, axis=1) < 0).all()


def test_pools_are_up_about_as_often_as_the_traces_were() -> None:
    """65% of the time in the mean over what pools are like, as fitted on 2026-11-30."""
    model = default_hazards()
    assert model.prior_K @ model.availability_K() == pytest.approx(0.651, abs=0.002)


def test_spot_capacity_that_is_there_is_taken_three_times_in_nine_hours_in_the_mean() -> None:
    """A class that is lost every 18 hours and up for most of the time counts for more than one lost every hour."""
    assert default_hazards().mean_loss_per_hour() == pytest.approx(1 / 3, abs=0.001)
