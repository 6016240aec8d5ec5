from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.capacity import DEFAULT_CORRELATION, Offer, Pool, Quote, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.prior import default_hazards
from airflow_llmsched.planner.market.rental import Holding, RentalView
from airflow_llmsched.planner.market.rental_ways import (
    Stock,
    hazards_of,
    mode_set,
    spot_stocks,
    unit_usd_per_hour,
    ways_of,
)
from airflow_llmsched.planner.market.spot_policy import SpotPolicy

HOUR_S = 3600.0
NEED = Requirement(
    by_shape={"p4": ShapeNeed(num_nodes=2, work_s=20 * HOUR_S), "p5": ShapeNeed(num_nodes=1, work_s=10 * HOUR_S)},
    more_nodes={"p5": (ShapeNeed(num_nodes=2, work_s=6 * HOUR_S),)},
)
WORK_S = {("p4", 2): 20 * HOUR_S, ("p5", 1): 10 * HOUR_S, ("p5", 2): 6 * HOUR_S}


def quote(
    shape: str = "p4",
    *,
    num_nodes: int = 2,
    usd: float = 10.0,
    zone: str = "a",
    region: str = "east",
    capacity_type: CapacityType = CapacityType.ON_DEMAND,
    egress_usd: float = 0.0,
    stage_s: float = 0.0,
) -> Quote:
    pool = Pool(cloud="sim", region=region, zone=zone, shape=shape, capacity_type=capacity_type)
    work_s = WORK_S[shape, num_nodes]
    return Quote(
        offer=Offer(pool=pool, usd_per_hour=usd, priced_at_s=0.0, source="test"),
        num_nodes=num_nodes,
        compute_usd=num_nodes * usd * work_s / HOUR_S,
        egress_usd=egress_usd,
        stage_s=stage_s,
        finish_at_s=work_s,
        valid_until_s=HOUR_S,
    )


def spot(shape: str = "p4", **changes) -> Quote:
    return quote(shape, **{"capacity_type": CapacityType.SPOT, "usd": 3.0, **changes})


def test_zones_of_a_region_are_one_way_and_sizes_shapes_and_regions_are_others() -> None:
    quotes = [
        quote(), quote(zone="b", usd=9.0), spot(zone="a"), spot(zone="b"), quote(region="west", usd=12.0),
        quote("p5", num_nodes=1, usd=30.0), quote("p5", num_nodes=2, usd=30.0),
    ]  # fmt: skip
    ways = ways_of(quotes, NEED, limit=9)
    assert len(ways) == 4
    assert [each.offer.pool.zone for each in ways_of(quotes[:4], NEED)[0].demand] == ["b", "a"]
    (home,) = ways_of(quotes[:4], NEED)
    assert [each.pool.zone for each in spot_stocks([home])] == ["a", "b"]
    assert home.describe() == "2 nodes of p4 in sim east"


def test_the_first_way_is_the_cheapest_on_demand() -> None:
    ways = ways_of([quote(usd=20.0), quote("p5", num_nodes=1, usd=30.0)], NEED)
    assert [way.demand[0].offer.pool.shape for way in ways] == ["p5", "p4"]


def test_a_way_without_on_demand_capacity_is_none() -> None:
    assert ways_of([spot()], NEED) == ()
    reserved = quote(capacity_type=CapacityType.RESERVED)
    assert len(ways_of([spot(), reserved], NEED)) == 1


def test_of_too_many_ways_those_that_may_be_wanted_are_kept() -> None:
    fast = quote("p5", num_nodes=2, usd=90.0, region="far")
    held = quote(region="here", usd=50.0)
    bargain = [quote(region="lent", usd=60.0), spot(region="lent", usd=0.1)]
    dull = [quote(region=f"r{number}", usd=11.0 + number) for number in range(6)]
    ways = ways_of([*dull, quote(), fast, held, *bargain], NEED, held=Stock.of(held), limit=4)
    assert {way.place[1] for way in ways} == {"east", "far", "here", "lent"}


def test_a_mode_has_the_speed_and_the_prices_of_its_way_against_the_first() -> None:
    ways = ways_of([quote(), spot(zone="a"), spot(zone="b", usd=4.0), quote("p5", num_nodes=1, usd=40.0)], NEED)
    modes = mode_set(ways, time_s=30 * HOUR_S, work_ratio=0.5, changeover_s=600.0).modes
    assert [mode.terms.work_s for mode in modes] == [10 * HOUR_S, 10 * HOUR_S]
    assert (modes[0].terms.demand_ratio, modes[0].terms.spot_ratio) == (1.0, pytest.approx(0.4))  # the dearer zone
    assert (modes[1].terms.demand_ratio, modes[1].terms.demand_speed_ratio) == (2.0, 2.0)
    assert (modes[0].pools, modes[1].pools) == ((0, 1), ())
    assert modes[1].terms.spot_ratio == modes[1].terms.demand_ratio


def test_the_way_to_another_region_takes_staging_and_egress_and_to_another_shape_neither() -> None:
    far = quote(region="west", usd=10.5, egress_usd=40.0, stage_s=900.0)
    ways = ways_of([quote(), far, quote("p5", num_nodes=1, usd=40.0)], NEED)
    modes = mode_set(ways, time_s=30 * HOUR_S, work_ratio=1.0, changeover_s=600.0)
    names = [way.place[1] for way in ways]
    west = names.index("west")
    assert modes.moves[0, west].duration_s == 1500.0
    assert modes.moves[0, west].cost_s == pytest.approx(2 * HOUR_S)  # $40 at $20 an hour
    assert all(west in pair for pair in modes.moves)


def test_what_costs_nothing_is_weighed_all_the_same() -> None:
    (way,) = ways_of([replace(quote(), offer=replace(quote().offer, usd_per_hour=0.0))], NEED)
    assert mode_set([way], time_s=30 * HOUR_S, work_ratio=1.0, changeover_s=0.0).modes[0].terms.demand_ratio > 0


def test_a_way_counts_its_carbon_beside_its_price_and_is_paid_for_without_it() -> None:
    clean = quote(usd=11.0, region="north")
    dirty = replace(quote(usd=10.0), extra_usd=400.0, extra_usd_per_hour=10.0)
    ways = ways_of([dirty, clean], NEED)
    assert [way.place[1] for way in ways] == ["north", "east"]
    assert [way.demand_usd_per_hour for way in ways] == [22.0, 40.0]
    assert [way.at_price().demand_usd_per_hour for way in ways] == [22.0, 20.0]
    modes = mode_set(ways, time_s=100 * HOUR_S, work_ratio=1.0, changeover_s=600.0).modes
    assert modes[1].terms.demand_ratio == pytest.approx(40 / 22)


def test_costs_are_counted_against_the_first_way_that_costs_something() -> None:
    free = replace(quote("p5", num_nodes=1), offer=replace(quote("p5", num_nodes=1).offer, usd_per_hour=0.0))
    free = replace(free, compute_usd=0.0)
    ways = ways_of([free, quote(usd=10.0)], NEED)
    assert [way.demand_usd_per_hour for way in ways] == [0.0, 20.0]
    assert unit_usd_per_hour(ways) == 20.0
    modes = mode_set(ways, time_s=30 * HOUR_S, work_ratio=1.0, changeover_s=600.0).modes
    assert [mode.terms.demand_ratio for mode in modes] == pytest.approx([0.0, 1.0], abs=1e-5)
    assert unit_usd_per_hour(ways[:1]) > 0.0


def test_spot_capacity_counts_at_the_price_that_is_expected() -> None:
    zones = [replace(spot(zone="a", usd=9.0), expected_usd_per_hour=2.5), spot(zone="b", usd=3.0)]
    (way,) = ways_of([quote(), *zones], NEED)
    assert way.spot_usd_per_hour == 2 * 3.0
    (mode,) = mode_set([way], time_s=30 * HOUR_S, work_ratio=1.0, changeover_s=600.0).modes
    assert mode.terms.spot_ratio == pytest.approx(0.3)


def test_a_sum_must_pay_for_the_dearer_of_the_price_of_the_moment_and_that_which_is_expected() -> None:
    for usd, expected_usd, counted_usd in ((9.0, 2.5, 9.0), (2.5, 9.0, 9.0), (3.0, None, 3.0)):
        (way,) = ways_of([quote(), replace(spot(usd=usd), expected_usd_per_hour=expected_usd)], NEED)
        assert way.at_price().spot_usd_per_hour == 2 * counted_usd


def test_each_ways_hazards_are_of_its_own_count_of_nodes() -> None:
    ways = ways_of([quote(), spot(), quote("p5", num_nodes=1, usd=30.0)], NEED)
    alone = default_hazards()
    single, pair = hazards_of(ways, alone, correlation=0.9)
    assert pair.loss_per_s_KF == pytest.approx(1.1 * alone.loss_per_s_KF)
    assert single is alone


@pytest.mark.parametrize(
    ("num_nodes", "correlation", "expected"),
    [
        (1, DEFAULT_CORRELATION, Holding.SPOT),
        (64, DEFAULT_CORRELATION, Holding.NOTHING),  # lost seven times as often: it waits until it has lasted
        (64, 1.0, Holding.SPOT),  # if it all came and went together
        (4096, DEFAULT_CORRELATION, Holding.ON_DEMAND),  # nothing will ever last
    ],
)
def test_what_a_single_node_takes_from_a_pool_a_gang_leaves(
    num_nodes: int, correlation: float, expected: Holding
) -> None:
    need = Requirement(by_shape={"p4": ShapeNeed(num_nodes=num_nodes, work_s=20 * HOUR_S)})
    quotes = [replace(each, num_nodes=num_nodes) for each in (quote(), spot(usd=6.0))]
    ways = ways_of(quotes, need)
    modes = mode_set(ways, time_s=22 * HOUR_S, work_ratio=1.0, changeover_s=1200.0)
    policy = SpotPolicy(hazards_of(ways, default_hazards(), correlation=correlation), modes=modes)
    policy.begin(modes.modes[0].terms, num_runs=1, num_pools=1)
    view = RentalView(
        left_s=22 * HOUR_S,
        tick_s=600.0,
        work_s_N=np.array([20 * HOUR_S]),
        overhead_s_N=np.zeros(1),
        holding_N=np.array([int(Holding.NOTHING)]),
        pool_N=np.zeros(1, dtype=np.int64),
        up_ZN=np.ones((1, 1), dtype=np.bool_),
    )
    assert Holding(int(policy.choose(view).holding_N[0])) is expected
