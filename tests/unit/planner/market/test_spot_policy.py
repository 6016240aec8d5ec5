from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.baselines import GreedySpot, UniformProgress
from airflow_llmsched.planner.market.forecast import PHASE_START_S, HazardModel, fit
from airflow_llmsched.planner.market.modes import Mode, ModeSet, Move, reshaped
from airflow_llmsched.planner.market.rental import Holding, RentalView
from airflow_llmsched.planner.market.replay import Replay, replay
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.stock import StockModel
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.units import HOUR_S
from tests.support.modes import elsewhere, mixed, scaled_down
from tests.support.pools import TICK_S, drawn, model_of, stock_drawn, trace_of

TERMS = SpotTerms(time_s=30 * HOUR_S, work_s=24 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
NUM_TICKS = int(TERMS.time_s / TICK_S)
STARTS_N = np.arange(0, NUM_TICKS, NUM_TICKS // 8)
"""Eight runs of one trace of twice their length: replayed together, they cost little more than one."""

POLICY = SpotPolicy(model_of(loss_per_hour=0.5, return_per_hour=0.5))
AGING = HazardModel(
    loss_per_s_KF=np.geomspace(4.0, 0.1, len(PHASE_START_S))[None] / HOUR_S,
    return_per_s_KF=np.geomspace(4.0, 0.2, len(PHASE_START_S))[None] / HOUR_S,
    prior_K=np.ones(1),
)


@settings(max_examples=16, deadline=None)
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
    up_T = np.resize(np.repeat([(each % 2 == 0) == starts_up for each in range(len(spells))], spells), 2 * NUM_TICKS)
    up_ZT = np.stack([np.roll(up_T, 17 * pool) for pool in range(num_pools)])
    terms = SpotTerms(
        time_s=TERMS.time_s, work_s=work_ratio * TERMS.time_s, changeover_s=TERMS.changeover_s, spot_ratio=0.3
    )
    done = replay(up_ZT, tick_s=TICK_S, starts_N=STARTS_N, terms=terms, policy=POLICY)
    assert done.in_time_N.all()
    assert (done.cost_s_N <= terms.time_s).all()


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


def test_asking_again_at_the_same_moment_ages_nothing() -> None:
    """A driver asks again when it was refused: only the pool that refused is seen in another state."""
    again, once = SpotPolicy(AGING), SpotPolicy(AGING)
    for policy in (again, once):
        policy.begin(TERMS, num_runs=1, num_pools=1)

    def look(policy: SpotPolicy, *, tick: int) -> None:
        view = RentalView(
            left_s=TERMS.time_s - tick * TICK_S,
            tick_s=TICK_S,
            work_s_N=np.array([TERMS.work_s]),
            overhead_s_N=np.zeros(1),
            holding_N=np.zeros(1, dtype=np.int64),
            pool_N=np.zeros(1, dtype=np.int64),
            up_ZN=np.array([[True]]),
        )
        policy.choose(view)

    for tick in range(12):
        look(once, tick=tick)
        for _ in range(5):
            look(again, tick=tick)
    aged, expected = again._beliefs[0], once._beliefs[0]
    assert aged is not None
    assert expected is not None
    assert aged.age_s_N == pytest.approx(expected.age_s_N, abs=12 * 5)


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


def chosen_way(policy: SpotPolicy, *, held: int, dearer: float) -> int:
    """Return the region that a run holding on-demand capacity in one of two is told, of which the first is dearer."""
    others = elsewhere(TERMS, demand_ratio=1.0, spot_ratio=0.9)
    first = replace(others, demand_ratio=1.0 + dearer)
    policy = SpotPolicy(policy._models[0], modes=_two(first, others), least_gain_s=policy._least_gain_s)
    policy.begin(TERMS, num_runs=1, num_pools=2)
    view = RentalView(
        left_s=29 * HOUR_S,
        tick_s=TICK_S,
        work_s_N=np.array([TERMS.work_s]),
        overhead_s_N=np.array([TERMS.changeover_s]),  # it has only just come
        holding_N=np.array([int(Holding.ON_DEMAND)]),
        pool_N=np.zeros(1, dtype=np.int64),
        up_ZN=np.zeros((2, 1), dtype=np.bool_),
        mode_N=np.array([held]),
    )
    choice = policy.choose(view)
    assert choice.mode_N is not None
    return int(choice.mode_N[0])


def _two(first: SpotTerms, second: SpotTerms) -> ModeSet:
    modes = (Mode(name="first", terms=first, pools=(0,)), Mode(name="second", terms=second, pools=(1,)))
    return ModeSet(modes=modes)


NEVER = model_of(loss_per_hour=1.0, return_per_hour=1e-9)


@pytest.mark.parametrize("dearer", [-0.003, 0.0, 0.003])
def test_of_two_choices_that_cost_alike_what_is_held_is_kept_whichever_it_is(dearer: float) -> None:
    """Its changeover is still before it, so that the other would take no longer: the margin alone speaks for it."""
    patient = SpotPolicy(NEVER, least_gain_s=600.0)
    assert [chosen_way(patient, held=held, dearer=dearer) for held in (0, 1)] == [0, 1]


def test_what_gains_more_than_the_margin_is_moved_to_and_without_one_whatever_gains() -> None:
    patient, fickle = SpotPolicy(NEVER, least_gain_s=600.0), SpotPolicy(NEVER)
    assert chosen_way(patient, held=0, dearer=0.02) == 1
    assert [chosen_way(fickle, held=held, dearer=0.003) for held in (0, 1)] == [1, 1]


def test_no_margin_keeps_a_run_from_being_in_time() -> None:
    """A gain that no move could ever have, on spot capacity when time is up: the order is given all the same."""
    policy = SpotPolicy(model_of(loss_per_hour=0.5, return_per_hour=0.5), least_gain_s=100 * HOUR_S)
    policy.begin(ROOMY, num_runs=1, num_pools=1)
    due = replace(view_at(slack_h=-1e-3, in_stock=True, holding=Holding.SPOT, up=True), in_stock_N=None)
    assert Holding(int(policy.choose(due).holding_N[0])) is Holding.ON_DEMAND


# On-demand capacity that can be out of stock

SCARCE = StockModel(out_per_hour=0.1, back_per_hour=0.4)
ROOMY = SpotTerms(time_s=30 * HOUR_S, work_s=20 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
PROMISED = 0.05


def frequency_of_misses(policy: SpotPolicy, *, spot: HazardModel | None, num_runs: int = 1500) -> float:
    starts_N = np.arange(num_runs) * NUM_TICKS
    in_stock_T = stock_drawn(SCARCE, num_ticks=(num_runs + 1) * NUM_TICKS, seed=11)
    up_T = np.zeros(len(in_stock_T), dtype=bool)
    if spot is not None:
        up_T = drawn(spot, hours=len(in_stock_T) * TICK_S / HOUR_S + 1, seed=12)[: len(in_stock_T)]
    done = replay(up_T[None], tick_s=TICK_S, starts_N=starts_N, terms=ROOMY, policy=policy, in_stock_T=in_stock_T)
    return float(1 - done.in_time_N.mean())


def test_run_that_waits_for_the_last_moment_is_late_as_often_as_is_stated() -> None:
    """It hopes for spot capacity that never comes: the order is given when the margin begins, and the bound happens."""
    hopeful = model_of(loss_per_hour=0.1, return_per_hour=0.5)
    policy = SpotPolicy(hopeful, stock=SCARCE, max_miss_ratio=PROMISED)
    missed = frequency_of_misses(policy, spot=None)
    margin_s = SCARCE.margin_s(max_miss_ratio=PROMISED, tick_s=TICK_S)
    stated = SCARCE.miss_probability(slack_s=margin_s, margin_s=margin_s, tick_s=TICK_S)
    deviation = np.sqrt(stated * (1 - stated) / 1500)
    assert 0.9 * PROMISED < stated <= PROMISED
    assert missed == pytest.approx(stated, abs=3.5 * deviation)


def test_run_that_hopes_for_nothing_does_not_wait() -> None:
    """Nobody waits for what does not come, though waiting would cost nothing."""
    never = model_of(loss_per_hour=1.0, return_per_hour=1e-9)
    for work_s in (10 * HOUR_S, 600.0, 1.0):  # down to less than a cell of the table
        policy = SpotPolicy(never)
        policy.begin(ROOMY, num_runs=1, num_pools=1)
        choice = policy.choose(replace(view_at(slack_h=8.0, in_stock=True), work_s_N=np.array([work_s])))
        assert choice.holding_N[0] == Holding.ON_DEMAND


def test_run_that_is_nearly_done_does_not_leave_what_it_has() -> None:
    model = model_of(loss_per_hour=0.5, return_per_hour=0.5)
    for work_s in (600.0, 60.0, 1.0):
        policy = SpotPolicy(model)
        policy.begin(ROOMY, num_runs=1, num_pools=1)
        view = view_at(slack_h=8.0, in_stock=True, holding=Holding.SPOT, up=True)
        assert policy.choose(replace(view, work_s_N=np.array([work_s]))).holding_N[0] == Holding.SPOT


def test_spot_capacity_meanwhile_only_makes_it_rarer() -> None:
    half = model_of(loss_per_hour=0.5, return_per_hour=0.5)
    missed = frequency_of_misses(SpotPolicy(half, stock=SCARCE, max_miss_ratio=PROMISED), spot=half)
    assert missed <= PROMISED
    careless = frequency_of_misses(SpotPolicy(half), spot=half)  # thinks that there always is some
    assert careless > 2 * missed


def view_at(*, slack_h: float, in_stock: bool, holding: Holding = Holding.NOTHING, up: bool = False) -> RentalView:
    work_s, changeover_s = 10 * HOUR_S, ROOMY.changeover_s
    return RentalView(
        left_s=work_s + changeover_s + TICK_S + slack_h * HOUR_S,
        tick_s=TICK_S,
        work_s_N=np.array([work_s]),
        overhead_s_N=np.zeros(1),
        holding_N=np.array([int(holding)]),
        pool_N=np.zeros(1, dtype=np.int64),
        up_ZN=np.array([[up]]),
        in_stock_N=np.array([in_stock]),
    )


def scarce_policy() -> SpotPolicy:
    policy = SpotPolicy(model_of(loss_per_hour=0.5, return_per_hour=0.5), stock=SCARCE, max_miss_ratio=PROMISED)
    policy.begin(ROOMY, num_runs=1, num_pools=1)
    return policy


@pytest.mark.parametrize(
    ("in_stock", "up", "holding", "expected"),
    [
        (True, True, Holding.SPOT, Holding.ON_DEMAND),  # due, and there: at once
        (False, True, Holding.SPOT, Holding.SPOT),  # due, and out: what there is
        (False, True, Holding.NOTHING, Holding.SPOT),
        (False, False, Holding.NOTHING, Holding.NOTHING),
        (False, True, Holding.ON_DEMAND, Holding.ON_DEMAND),  # what is held is not given back for a moment
    ],
)
def test_order_is_given_when_the_margin_begins(in_stock: bool, up: bool, holding: Holding, expected: Holding) -> None:
    view = view_at(slack_h=1.0, in_stock=in_stock, up=up, holding=holding)
    assert Holding(int(scarce_policy().choose(view).holding_N[0])) is expected


def test_what_is_promised_is_said_and_changes_with_what_is_seen() -> None:
    policy = scarce_policy()

    def promised(**values: Any) -> float:
        return float(policy.promised_miss_N(view_at(**values))[0])

    assert promised(slack_h=1.0, in_stock=True, holding=Holding.ON_DEMAND) == 0.0
    assert 0.04 < promised(slack_h=1.0, in_stock=False) < 1.0
    assert promised(slack_h=0.5, in_stock=False) > promised(slack_h=1.0, in_stock=False)
    assert promised(slack_h=200.0, in_stock=False) == pytest.approx(PROMISED, rel=0.1)
    assert promised(slack_h=-5.0, in_stock=True) == 1.0


# Other places, shapes and sizes


def region(*, spot_ratio: float, demand_ratio: float = 1.0) -> SpotTerms:
    return elsewhere(TERMS, demand_ratio=demand_ratio, spot_ratio=spot_ratio)


def replayed(
    policy: SpotPolicy, modes: ModeSet | None, up_ZT: np.ndarray, *, terms: SpotTerms = TERMS, every: int = 211
) -> Replay:
    num_ticks = int(terms.time_s / TICK_S)
    starts_N = np.arange(0, up_ZT.shape[1] - num_ticks - 1, every)
    return replay(up_ZT, tick_s=TICK_S, starts_N=starts_N, terms=terms, policy=policy, modes=modes)


RATIOS = st.floats(min_value=0.2, max_value=2.0)


@settings(max_examples=10, deadline=None)
@given(
    spells=st.lists(st.integers(min_value=1, max_value=80), min_size=1, max_size=40),
    work_ratio=st.floats(min_value=0.05, max_value=0.985),
    ratios=st.tuples(RATIOS, RATIOS, RATIOS),
    moves_h=st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 4.0)),
    kind=st.sampled_from(["region", "shape", "smaller", "mix"]),
    cost_h=st.floats(0.0, 5.0),
)
def test_feasible_deadline_is_never_missed_whatever_else_there_is_to_choose(
    *,
    spells: list[int],
    work_ratio: float,
    ratios: tuple[float, float, float],
    moves_h: tuple[float, float],
    kind: str,
    cost_h: float,
) -> None:
    terms = replace(TERMS, work_s=work_ratio * TERMS.time_s)
    speed, spot, demand = ratios
    other = {
        "region": elsewhere(terms, demand_ratio=demand, spot_ratio=spot),
        "shape": reshaped(terms, speed_ratio=speed, demand_ratio=demand, spot_ratio=spot),
        "smaller": scaled_down(terms, nodes_ratio=min(speed, 0.9), speed_ratio=min(speed, 0.9)),
        "mix": mixed(terms, demand_nodes_ratio=min(demand, 0.9), demand_nodes_speed_ratio=min(speed, 0.9)),
    }[kind]
    modes = ModeSet(
        modes=(Mode(name="plan", terms=terms, pools=(0,)), Mode(name=kind, terms=other, pools=(1,))),
        moves={
            (0, 1): Move(duration_s=moves_h[0] * HOUR_S, cost_s=cost_h * HOUR_S),
            (1, 0): Move(duration_s=moves_h[1] * HOUR_S),
        },
    )
    up_T = np.resize(np.repeat([each % 2 == 0 for each in range(len(spells))], spells), 2 * NUM_TICKS)
    policy = SpotPolicy(AGING, modes=modes)
    done = replay(
        np.stack([np.roll(up_T, 29), up_T]),
        tick_s=TICK_S,
        starts_N=STARTS_N,
        terms=terms,
        policy=policy,
        modes=modes,
    )
    assert done.in_time_N.all()


HALF_UP = model_of(loss_per_hour=0.4, return_per_hour=0.4)
KINDS = {
    "cheaper region, dear egress": (region(spot_ratio=0.15), Move(duration_s=HOUR_S, cost_s=3 * HOUR_S)),
    "faster shape": (
        reshaped(TERMS, speed_ratio=1.6, demand_ratio=1.9, spot_ratio=0.5),
        Move(duration_s=0.5 * HOUR_S, cost_s=0.0),
    ),
    "half the nodes": (scaled_down(TERMS, nodes_ratio=0.5, speed_ratio=0.55), Move(duration_s=0.2 * HOUR_S)),
    "mix of half": (mixed(TERMS, demand_nodes_ratio=0.5, demand_nodes_speed_ratio=0.55), Move(duration_s=0.2 * HOUR_S)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_more_to_choose_from_is_never_dearer_than_on_demand_alone_nor_than_the_plan_alone(kind: str) -> None:
    """In expectation, over pools drawn from the very hazards that are believed."""
    terms, move = KINDS[kind]
    modes = ModeSet(
        modes=(Mode(name="plan", terms=TERMS, pools=(0,)), Mode(name=kind, terms=terms, pools=(1,))),
        moves={(0, 1): move},
    )
    up_ZT = np.stack([drawn(HALF_UP, hours=3000, seed=seed) for seed in (21, 22)])
    both = replayed(SpotPolicy(HALF_UP, modes=modes), modes, up_ZT)
    alone = replayed(SpotPolicy(HALF_UP), None, up_ZT[:1])
    demand_s = TERMS.work_s + TERMS.changeover_s
    assert both.in_time_N.all()
    assert both.cost_s_N.mean() < demand_s
    assert both.cost_s_N.mean() < 1.01 * alone.cost_s_N.mean()


@pytest.mark.parametrize(("egress_h", "moves"), [(0.0, True), (12.0, False)])
def test_cheaper_region_is_moved_to_if_it_is_worth_the_egress(egress_h: float, moves: bool) -> None:
    modes = ModeSet(
        modes=(
            Mode(name="here", terms=TERMS, pools=(0,)),
            Mode(name="there", terms=region(spot_ratio=0.1, demand_ratio=0.8), pools=(1,)),
        ),
        moves={(0, 1): Move(duration_s=0.5 * HOUR_S, cost_s=egress_h * HOUR_S)},
    )
    up_ZT = np.stack([drawn(HALF_UP, hours=600, seed=seed) for seed in (31, 32)])
    done = replayed(SpotPolicy(HALF_UP, modes=modes), modes, up_ZT, every=37)
    assert bool(done.num_moves_N.mean() > 0.9) is moves


def test_wide_time_lets_a_run_scale_down_to_nodes_that_waste_less() -> None:
    """Half the nodes at 60% of the speed are cheaper for the work, where the deadline allows it."""
    never = model_of(loss_per_hour=1.0, return_per_hour=1e-9)
    costs = {}
    for work_h in (10.0, 28.0):
        terms = replace(TERMS, work_s=work_h * HOUR_S)
        small = scaled_down(terms, nodes_ratio=0.5, speed_ratio=0.6)
        modes = ModeSet(modes=(Mode(name="plan", terms=terms), Mode(name="small", terms=small)))
        done = replayed(SpotPolicy(never, modes=modes), modes, np.zeros((1, 2 * NUM_TICKS), dtype=bool), terms=terms)
        assert done.in_time_N.all()
        costs[work_h] = float(done.cost_s_N.mean()) / (terms.work_s + terms.changeover_s)
    assert costs[10.0] == pytest.approx(0.5 / 0.6, abs=0.02)
    assert 0.95 < costs[28.0] < 1.01


def test_mix_is_chosen_where_starting_over_is_long_and_spot_is_restless() -> None:
    """The whole gang starts over for an hour; groups that come and go cost the rest six minutes."""
    terms = replace(TERMS, work_s=20 * HOUR_S, changeover_s=HOUR_S)
    mix = mixed(replace(terms, changeover_s=0.1 * HOUR_S), demand_nodes_ratio=0.5, demand_nodes_speed_ratio=0.5)
    modes = ModeSet(
        modes=(Mode(name="plan", terms=terms, pools=(0,)), Mode(name="mix", terms=mix, pools=(0,))),
        moves={(0, 1): Move(duration_s=HOUR_S)},
    )
    pool = model_of(loss_per_hour=0.7, return_per_hour=1.0)
    up_ZT = drawn(pool, hours=3000, seed=41)[None]
    both = replayed(SpotPolicy(pool, modes=modes), modes, up_ZT, terms=terms)
    alone = replayed(SpotPolicy(pool), None, up_ZT, terms=terms)
    assert both.in_time_N.all()
    assert both.num_moves_N.mean() > 0.9
    assert both.cost_s_N.mean() < 0.9 * alone.cost_s_N.mean()


def test_modes_of_another_run_or_of_pools_that_are_not_there_are_refused() -> None:
    modes = ModeSet(modes=(Mode(name="plan", terms=TERMS, pools=(3,)),))
    with pytest.raises(SpecError, match=r"modes\[plan\].pools"):
        SpotPolicy(HALF_UP, modes=modes).begin(TERMS, num_runs=1, num_pools=2)
    with pytest.raises(SpecError, match="of the run that is begun"):
        SpotPolicy(HALF_UP, modes=modes).begin(ROOMY, num_runs=1, num_pools=4)
    with pytest.raises(SpecError, match="one for each of 1 modes"):
        SpotPolicy([HALF_UP, HALF_UP], modes=modes)
