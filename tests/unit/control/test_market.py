"""What can be rented is what clouds offer; what it costs is whatever the newest source says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_llmsched.control.market import LATER, TO_BE_BOUGHT, Market, Survey, ask_market, survey_market
from airflow_llmsched.domain.capacity import Offer, Purchase, Requirement, ShapeNeed
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.planner.market.energy_terms import EnergyTerms
from airflow_llmsched.planner.market.offers import Weights
from airflow_llmsched.ports import PriceSource
from airflow_llmsched.prices.merged import AgedSource, MergedPrices
from tests.support.sim_cloud import SimCloudHarness, sim_pool, spread_pools

NEED = Requirement(by_shape={"sim.8x": ShapeNeed(num_nodes=2, work_s=3600.0)})


class Listed:
    """A price list of some offers."""

    name = "list"

    def __init__(self, *offers: Offer) -> None:
        self._offers = offers

    def offers(self, *, now_s: float) -> PricedOffers:
        return PricedOffers(offers=self._offers)


def ask(harness: SimCloudHarness, *listed: Offer, max_usd_per_hour: float | None = None) -> Market:
    def merge(sources: Sequence[PriceSource]) -> PriceSource:
        return MergedPrices(*(AgedSource(source=each) for each in [*sources, Listed(*listed)]))

    return ask_market(NEED, [harness.cloud], merge, now_s=harness.now_s(), max_usd_per_hour=max_usd_per_hour)


def surveyed(*harnesses: SimCloudHarness) -> Survey:
    clouds = [harness.cloud for harness in harnesses]
    return survey_market(
        NEED,
        clouds,
        lambda sources: MergedPrices(*(AgedSource(source=each) for each in sources)),
        now_s=harnesses[0].now_s(),
    )


def test_the_cheapest_to_the_end_comes_first() -> None:
    market = ask(SimCloudHarness(sim_pool("a"), sim_pool("b", usd_per_hour=30.0)))
    assert [quote.offer.pool.zone for quote in market.quotes] == ["sim-east-b", "sim-east-a"]
    assert market.explain() == "2 of 2 offers serve"


def test_a_price_that_only_a_list_knows_is_filled_in_by_zone_or_region() -> None:
    pool = sim_pool("a", usd_per_hour=float("nan"))
    regional = replace(pool.offer, pool=replace(pool.offer.pool, zone=""), usd_per_hour=21.0, source="list")
    (quote,) = ask(SimCloudHarness(pool), regional).quotes
    assert (quote.offer.usd_per_hour, quote.offer.source) == (21.0, "list")
    assert quote.offer.pool == pool.offer.pool
    assert quote.offer.num_nodes == 8


def test_what_nobody_prices_and_what_no_cloud_offers_is_not_rented() -> None:
    harness = SimCloudHarness(sim_pool("a", usd_per_hour=float("nan")))
    market = ask(harness, sim_pool("z", usd_per_hour=1.0).offer)
    assert market.quotes == ()
    assert market.explain() == "no offer serves: 1 without a price"


def test_a_highest_price_hides_no_reason_why_spot_is_pointless() -> None:
    spot = sim_pool("b", capacity_type=CapacityType.SPOT, usd_per_hour=45.0)
    market = ask(SimCloudHarness(sim_pool("a", usd_per_hour=40.0), spot), max_usd_per_hour=39.0)
    assert market.quotes == ()
    assert market.rejections["above the highest price allowed"] == 1
    assert sum(market.rejections.values()) == 2


def test_no_cloud_that_answers_is_not_an_empty_market() -> None:
    harness = SimCloudHarness()
    harness.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError):
        ask_market(
            NEED,
            [harness.cloud],
            lambda sources: MergedPrices(*(AgedSource(source=each) for each in sources)),
            now_s=harness.now_s(),
        )


def test_a_region_that_does_not_answer_hides_no_other_and_is_counted_with_its_words() -> None:
    harness = SimCloudHarness(*spread_pools())
    whole = surveyed(harness)
    assert {quote.offer.pool.region for quote in whole.market.quotes} == {"sim-east", "sim-west"}
    assert whole.unseen == ()
    harness.silence(is_silent=True)
    survey = surveyed(harness)
    assert {quote.offer.pool.region for quote in survey.market.quotes} == {"sim-east"}
    assert survey.unseen == ("sim/sim-west",)
    assert {quote.offer.pool.region for quote in whole.market.quotes if survey.is_silent(quote.offer.pool)} == {
        "sim-west"
    }
    assert "1 of a part of sim (sim-west of the simulated cloud does not answer)" in survey.market.explain()
    assert {quote.offer.pool.region for quote in ask(harness).quotes} == {"sim-east"}


def test_a_cloud_that_does_not_answer_beside_another_is_named() -> None:
    dark, other = SimCloudHarness(), SimCloudHarness()
    dark.cloud.name = "dark"
    dark.go_dark(is_dark=True)
    assert surveyed(dark, other).unseen == ("dark",)


def test_nor_where_a_list_knows_what_it_would_cost() -> None:
    harness = SimCloudHarness()
    harness.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match=r"no cloud could be asked: .*does not answer"):
        ask(harness, harness.offer())


def test_a_node_shape_that_the_run_cannot_be_planned_on_is_counted_with_the_reason() -> None:
    harness = SimCloudHarness(sim_pool("a"))
    need = replace(NEED, refused={"tiny": "on which the run cannot be planned"})
    market = ask_market(need, [harness.cloud], lambda sources: sources[0], now_s=harness.now_s())
    assert market.explain() == "1 of 1 offers serve: 1 node shape tiny, on which the run cannot be planned"


def test_an_offer_is_quoted_for_every_node_count_that_competes() -> None:
    harness = SimCloudHarness(sim_pool("a"))
    need = replace(NEED, more_nodes={"sim.8x": (ShapeNeed(num_nodes=4, work_s=1900.0),)})
    market = ask_market(need, [harness.cloud], lambda sources: sources[0], now_s=harness.now_s())
    assert [quote.num_nodes for quote in market.quotes] == [2, 4]
    assert market.explain() == "1 of 1 offers serve"


def test_what_has_to_be_bought_first_is_rented_by_nobody_and_said_where_it_would_be_cheaper() -> None:
    def market(*, usd_per_hour: float) -> Market:
        block = sim_pool("b", usd_per_hour=usd_per_hour, capacity_type=CapacityType.RESERVED)
        block.offer = replace(block.offer, purchase=Purchase(what="block cb-1", usd=4800.0, command="buy cb-1"))
        return ask(SimCloudHarness(sim_pool("a", usd_per_hour=30.0), block))

    cheaper, dearer = market(usd_per_hour=20.0), market(usd_per_hour=31.0)
    for each in (cheaper, dearer):
        assert [quote.offer.pool.zone for quote in each.quotes] == ["sim-east-a"]
        assert each.explain() == f"1 of 2 offers serve: 1 {TO_BE_BOUGHT}"
    assert cheaper.asks.startswith("block cb-1 costs $4,800.00 at once")
    assert cheaper.asks.endswith("Nobody buys it but a person: buy cb-1")
    assert dearer.asks == ""


def test_a_policy_does_not_fall_back_on_what_has_to_be_bought_first() -> None:
    block = sim_pool("b", usd_per_hour=20.0, capacity_type=CapacityType.RESERVED)
    block.offer = replace(block.offer, purchase=Purchase(what="block cb-1", usd=4800.0, command="buy cb-1"))
    harness = SimCloudHarness(block)
    survey = survey_market(NEED, [harness.cloud], lambda sources: sources[0], now_s=harness.now_s())
    assert survey.market.quotes == ()
    assert survey.market.asks


def test_a_policy_counts_on_no_more_of_a_reservation_than_is_free_and_on_none_before_it_begins() -> None:
    """At its price, which may be nothing, on-demand capacity would seem to cost as little."""
    small, large, later = (
        sim_pool(zone, usd_per_hour=0.0, num_free=num_free, capacity_type=CapacityType.RESERVED)
        for zone, num_free in (("small", 1), ("large", 3), ("later", 3))
    )
    harness = SimCloudHarness(sim_pool("a", num_free=0), small, large, later)
    later.offer = replace(later.offer, starts_at_s=harness.now_s() + 3600.0)
    survey = survey_market(NEED, [harness.cloud], lambda sources: sources[0], now_s=harness.now_s())
    assert [quote.offer.pool.zone for quote in survey.market.quotes] == ["sim-east-large", "sim-east-a"]
    assert survey.market.explain() == f"2 of 4 offers serve: 1 {LATER}; 1 with too few nodes"
    assert [survey.has(each.offer.pool, 2) for each in (small, large, later)] == [False, True, False]


def test_a_pool_of_two_reservations_has_room_for_what_fits_in_one_of_them() -> None:
    small, large = (sim_pool("a", capacity_type=CapacityType.RESERVED, num_free=num_free) for num_free in (2, 5))
    small.offer = replace(small.offer, starts_at_s=7.0)

    class Both:
        name = "both"

        def offers(self, _need: Requirement) -> Sequence[Offer]:
            return [replace(large.offer, num_nodes=5), replace(small.offer, num_nodes=2)]

    survey = survey_market(NEED, [Both()], lambda sources: sources[0], now_s=100.0)  # type: ignore[list-item]
    assert [survey.has(large.offer.pool, num_nodes) for num_nodes in (5, 6)] == [True, False]


def test_spot_capacity_of_which_nobody_says_how_often_it_is_taken_is_taken_as_usual() -> None:
    """Two hours of rework each time: dearer than on-demand at four fifths of its price, unless it is known to last.

    Two nodes are lost 1.1 times as often as one.
    """
    unknown, lasting = (
        sim_pool(zone, capacity_type=CapacityType.SPOT, usd_per_hour=32.0, start_up_s=0.0) for zone in ("a", "b")
    )
    demand = sim_pool("c", start_up_s=0.0).offer

    class Told:
        name = "told"

        def offers(self, _need: Requirement) -> Sequence[Offer]:
            return [
                replace(unknown.offer, loss_per_hour=None),
                replace(lasting.offer, loss_per_hour=0.01),
                replace(demand, loss_per_hour=None),
            ]

    need = replace(NEED, rework_s=7200.0)
    market = ask_market(need, [Told()], lambda sources: sources[0], now_s=0.0)  # type: ignore[list-item]
    assert [quote.offer.pool.zone for quote in market.quotes] == ["sim-east-b", "sim-east-c", "sim-east-a"]
    assert market.quotes[-1].compute_usd == pytest.approx(2 * 32.0 * (1 + 1.1 * 2 / 3 + 300 / 3600), rel=1e-3)
    assert [quote.offer.loss_per_hour for quote in market.quotes[:2]] == [0.01, None]


def test_what_counts_beside_the_price_orders_offers_and_is_said_in_words() -> None:
    dirty, clean = sim_pool("a"), sim_pool("b", usd_per_hour=45.0)
    dirty.offer = replace(dirty.offer, carbon_g_per_hour=9e5)
    clean.offer = replace(clean.offer, carbon_g_per_hour=1e3)
    harness = SimCloudHarness(dirty, clean)
    weighed = EnergyTerms(weights=Weights(usd_per_carbon_g=1e-4))

    def market(energy: EnergyTerms) -> Market:
        return ask_market(NEED, [harness.cloud], lambda sources: sources[0], now_s=harness.now_s(), energy=energy)

    assert market(EnergyTerms()).quotes[0].offer.pool.zone == "sim-east-a"
    assert market(weighed).quotes[0].offer.pool.zone == "sim-east-b"
    assert "kg of CO2 equivalent with the first" in market(weighed).explain()
    survey = survey_market(NEED, [harness.cloud], lambda sources: sources[0], now_s=harness.now_s(), energy=weighed)
    assert survey.market.quotes[0].offer.pool.zone == "sim-east-b"
