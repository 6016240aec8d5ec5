from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.planner.market.baselines import GreedySpot, UniformProgress
from airflow_llmsched.planner.market.forecast import PHASE_START_S, HazardModel, fit
from airflow_llmsched.planner.market.rental import Holding, RentalView
from airflow_llmsched.planner.market.replay import Replay, replay
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.units import HOUR_S
from tests.support.pools import TICK_S, drawn, model_of, trace_of

TERMS = SpotTerms(time_s=30 * HOUR_S, work_s=24 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
NUM_TICKS = int(TERMS.time_s / TICK_S)
POLICY = SpotPolicy(model_of(loss_per_hour=0.5, return_per_hour=0.5))
AGING = HazardModel(
    loss_per_s_KF=np.geomspace(4.0, 0.1, len(PHASE_START_S))[None] / HOUR_S,
    return_per_s_KF=np.geomspace(4.0, 0.2, len(PHASE_START_S))[None] / HOUR_S,
    prior_K=np.ones(1),
)


@settings(max_examples=40, deadline=None)
@given(
    spells=st.lists(st.integers(min_value=1, max_value=80), min_size=1, max_size=60),
    starts_up=st.booleans(),
    num_pools=st.integers(min_value=1, max_value=3),
    work_ratio=st.floats(min_value=0.05, max_value=0.985),
)
def test_feasible_deadline_is_never_missed(
    spells: list[int], starts_up: bool, num_pools: int, work_ratio: float
) -> None:
    """Whatever the pools do, though the model is wrong about them."""
    up_T = np.resize(np.repeat([(each % 2 == 0) == starts_up for each in range(len(spells))], spells), NUM_TICKS)
    up_ZT = np.stack([np.roll(up_T, 17 * pool) for pool in range(num_pools)])
    terms = SpotTerms(
        time_s=TERMS.time_s, work_s=work_ratio * TERMS.time_s, changeover_s=TERMS.changeover_s, spot_ratio=0.3
    )
    done = replay(up_ZT, tick_s=TICK_S, starts_N=np.array([0]), terms=terms, policy=POLICY)
    assert done.in_time_N.all()
    assert done.cost_s_N[0] <= terms.time_s


def compare(up_ZT: np.ndarray, model: HazardModel) -> dict[str, Replay]:
    starts_N = np.arange(0, up_ZT.shape[1] - NUM_TICKS - 1, 151)
    policies = {"greedy": GreedySpot(), "pace": UniformProgress(), "ours": SpotPolicy(model)}
    return {
        name: replay(up_ZT, tick_s=TICK_S, starts_N=starts_N, terms=TERMS, policy=policy)
        for name, policy in policies.items()
    }


def test_cheaper_than_greedy_and_an_even_pace_on_a_pool_it_was_not_fitted_on() -> None:
    model = fit([trace_of(AGING, hours=1500, seed=seed) for seed in (1, 2)], num_factors=2)
    done = compare(drawn(AGING, hours=3000, seed=9)[None], model)
    costs = {name: float(each.cost_s_N.mean()) for name, each in done.items()}
    assert costs["ours"] < 0.97 * min(costs["greedy"], costs["pace"]), costs
    assert all(each.in_time_N.all() for each in done.values())


def test_second_pool_makes_it_cheaper() -> None:
    model = fit([trace_of(AGING, hours=1500, seed=seed) for seed in (1, 2)], num_factors=2)
    up_ZT = np.stack([drawn(AGING, hours=2000, seed=seed) for seed in (4, 5)])
    one, both = compare(up_ZT[:1], model)["ours"], compare(up_ZT, model)["ours"]
    assert both.cost_s_N.mean() < 0.9 * one.cost_s_N.mean()
    assert both.in_time_N.all()


def first_choice(model: HazardModel, *, spot_ratio: float = 0.3, up: bool = True) -> Holding:
    policy = SpotPolicy(model)
    terms = SpotTerms(time_s=TERMS.time_s, work_s=TERMS.work_s, changeover_s=TERMS.changeover_s, spot_ratio=spot_ratio)
    policy.begin(terms, num_runs=1, num_pools=1)
    view = RentalView(
        left_s=TERMS.time_s,
        tick_s=TICK_S,
        work_s_N=np.array([TERMS.work_s]),
        overhead_s_N=np.zeros(1),
        holding_N=np.array([int(Holding.NOTHING)]),
        pool_N=np.zeros(1, dtype=np.int64),
        up_ZN=np.array([[up]]),
    )
    return Holding(int(policy.choose(view).holding_N[0]))


@pytest.mark.parametrize(
    ("loss_per_hour", "return_per_hour", "up", "expected"),
    [
        (0.1, 1.0, True, Holding.SPOT),
        (0.1, 2.0, False, Holding.NOTHING),  # it will be back soon, and there is time
        (40.0, 0.01, True, Holding.ON_DEMAND),  # it would be gone before it had started
    ],
)
def test_what_is_chosen_first_follows_from_the_hazards(
    loss_per_hour: float, return_per_hour: float, up: bool, expected: Holding
) -> None:
    model = model_of(loss_per_hour=loss_per_hour, return_per_hour=return_per_hour)
    chosen = first_choice(model, up=up)
    assert chosen is expected or (expected is Holding.ON_DEMAND and chosen is Holding.NOTHING)


def test_spot_dearer_than_on_demand_is_left_alone() -> None:
    """Seen in the catalogues: a zone whose spot price is above its on-demand price."""
    model = model_of(loss_per_hour=0.01, return_per_hour=1.0)
    assert first_choice(model, spot_ratio=1.4) is not Holding.SPOT


def test_of_pools_that_are_up_the_oldest_spell_is_taken() -> None:
    policy = SpotPolicy(AGING)
    policy.begin(TERMS, num_runs=1, num_pools=2)
    up_ZT = np.array([[True] * 30, [False] * 20 + [True] * 10])
    pools = []
    for tick in range(20, 30):
        view = RentalView(
            left_s=TERMS.time_s - tick * TICK_S,
            tick_s=TICK_S,
            work_s_N=np.array([TERMS.work_s * 0.9]),
            overhead_s_N=np.zeros(1),
            holding_N=np.array([int(Holding.NOTHING)]),
            pool_N=np.ones(1, dtype=np.int64),
            up_ZN=up_ZT[:, tick : tick + 1] if tick > 20 else np.array([[True], [False]]),
        )
        pools.append(int(policy.choose(view).pool_N[0]))
    assert pools == [0] * 10
