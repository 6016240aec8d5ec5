from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.domain.capacity import DEFAULT_CORRELATION
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.forecast import HazardModel, first_belief, observe
from airflow_llmsched.planner.market.gang_hazards import joint_availability, loss_ratio, of_gang
from airflow_llmsched.planner.market.prior import default_hazards
from airflow_llmsched.units import HOUR_S
from tests.support.pools import model_of


def test_gang_is_as_available_as_one_node_only_if_the_pool_moves_as_one() -> None:
    assert joint_availability(0.9, 64, correlation=1.0) == pytest.approx(0.9)
    assert joint_availability(0.9, 4, correlation=0.0) == pytest.approx(0.9**4)
    assert 0.9**4 < joint_availability(0.9, 4, correlation=0.5) < 0.9
    assert joint_availability(0.0, 4, correlation=1.0) == 0.0
    assert joint_availability(0.9, 1, correlation=0.3) == pytest.approx(0.9)


def test_two_nodes_by_hand() -> None:
    """A node is up for 2 of 3 hours. Of its losses half are the pool's: c = 5/6, and 5/6 x (4/5)^2 = 8/15 of the time.

    Lost 0.75 times an hour, the two are up for 4/3 h, and away for 4/3 x 7/8 = 7/6 h.
    """
    pair = of_gang(model_of(loss_per_hour=0.5, return_per_hour=1.0), 2, correlation=0.5)
    assert pair.loss_per_s_KF * HOUR_S == pytest.approx(np.full((1, 6), 0.75))
    assert pair.return_per_s_KF * HOUR_S == pytest.approx(np.full((1, 6), 6 / 7))
    assert pair.availability_K() == pytest.approx([8 / 15])
    assert pair.num_nodes == 2


@pytest.mark.parametrize("correlation", [0.0, 0.5, DEFAULT_CORRELATION])
@pytest.mark.parametrize("num_nodes", [2, 16, 200])
def test_the_share_of_time_up_is_the_joint_one_in_every_class(num_nodes: int, correlation: float) -> None:
    alone = default_hazards()
    gang = of_gang(alone, num_nodes, correlation=correlation)
    wanted_K = joint_availability(alone.availability_K(), num_nodes, correlation=correlation)
    assert gang.availability_K() == pytest.approx(wanted_K, rel=1e-6, abs=1e-10)
    assert gang.loss_per_s_KF == pytest.approx(alone.loss_per_s_KF * (correlation + (1 - correlation) * num_nodes))
    assert (gang.availability_K() < alone.availability_K()).all()


def test_a_pool_that_moves_as_one_is_to_a_gang_what_it_is_to_a_node() -> None:
    alone = default_hazards()
    gang = of_gang(alone, 4096, correlation=1.0)
    assert gang.loss_per_s_KF == pytest.approx(alone.loss_per_s_KF)
    assert gang.return_per_s_KF == pytest.approx(alone.return_per_s_KF)
    assert of_gang(alone, 1, correlation=0.3) is alone


def test_what_was_watched_on_several_nodes_is_carried_down_to_fewer_as_well() -> None:
    alone = default_hazards()
    back = of_gang(of_gang(alone, 16, correlation=0.7), 1, correlation=0.7)
    assert back.loss_per_s_KF == pytest.approx(alone.loss_per_s_KF)
    assert back.return_per_s_KF == pytest.approx(alone.return_per_s_KF, rel=1e-6)


@pytest.mark.parametrize("num_nodes", [1000, 100_000])
@pytest.mark.parametrize("correlation", [0.0, DEFAULT_CORRELATION])
def test_rates_of_thousands_of_nodes_stay_finite_and_belief_in_them_can_be_moved(
    num_nodes: int, correlation: float
) -> None:
    gang = of_gang(default_hazards(), num_nodes, correlation=correlation)
    for rates in (gang.loss_per_s_KF, gang.return_per_s_KF):
        assert np.isfinite(rates).all()
        assert (rates > 0).all()
    belief = first_belief(gang, np.array([True, False]))
    for up in (False, True, True):  # which such a pool hardly ever does
        belief = observe(gang, belief, np.array([up, not up]), after_s=600.0)
        assert belief.weight_NK.sum(axis=1) == pytest.approx([1.0, 1.0])


def test_belief_moves_from_there_by_what_the_gangs_own_pool_shows() -> None:
    gang = of_gang(default_hazards(), 64, correlation=DEFAULT_CORRELATION)
    belief = first_belief(gang, np.array([True]))

    def loss_per_hour(model: HazardModel) -> float:
        return float(HOUR_S * belief.weight_NK[0] @ model.loss_per_s_KF[:, 2])

    before = loss_per_hour(gang)
    for _ in range(12):
        belief = observe(gang, belief, np.array([True]), after_s=600.0)
    assert loss_per_hour(gang) < 0.8 * before


def test_loss_ratio_is_of_all_counts_at_once() -> None:
    assert loss_ratio(np.array([1.0, 4.0, 64.0]), correlation=0.9) == pytest.approx([1.0, 1.3, 7.3])


@pytest.mark.parametrize(("num_nodes", "correlation", "path"), [(4, 1.1, "correlation"), (0, 0.5, "num_nodes")])
def test_what_is_no_gang_is_refused(num_nodes: int, correlation: float, path: str) -> None:
    with pytest.raises(SpecError, match=path):
        of_gang(default_hazards(), num_nodes, correlation=correlation)
