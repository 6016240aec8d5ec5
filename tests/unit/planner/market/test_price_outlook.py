from __future__ import annotations

from itertools import pairwise

import pytest

from airflow_llmsched.planner.market.price_outlook import MAX_TICKS, Sighting, price_outlook
from airflow_llmsched.units import DAY_S, HOUR_S
from tests.support.market import NOW_S, SPOT, offer_of


def sightings(*usd: float, gap_s: float = HOUR_S, zone: str = "a") -> list[Sighting]:
    return [
        Sighting(at_s=NOW_S + number * gap_s, offers=(offer_of(each, SPOT, zone=zone),))
        for number, each in enumerate(usd)
    ]


def test_a_price_that_stays_is_foreseen_to_stay_and_one_that_moves_has_a_band_around_it() -> None:
    (still,) = price_outlook(sightings(*[2.0] * 50), after_s=6 * HOUR_S)
    assert still.forecast is not None
    assert still.forecast.low_usd_per_hour == pytest.approx(2.0)
    assert still.forecast.high_usd_per_hour == pytest.approx(2.0)
    (moves,) = price_outlook(sightings(*[2.0, 3.0] * 40), after_s=HOUR_S)
    assert moves.forecast is not None
    assert (moves.num_seen, moves.offer.usd_per_hour) == (80, 3.0)
    assert moves.forecast.low_usd_per_hour < 2.1
    assert moves.forecast.high_usd_per_hour > 2.9


def test_one_sighting_foretells_nothing_and_a_pool_that_is_gone_is_not_shown() -> None:
    (once,) = price_outlook(sightings(2.0), after_s=HOUR_S)
    assert once.forecast is None
    gone, here = sightings(5.0, zone="gone"), sightings(2.0, 2.0)
    assert [each.offer.pool.zone for each in price_outlook([*gone, here[1]], after_s=HOUR_S)] == ["a"]
    assert price_outlook([], after_s=HOUR_S) == []


def test_of_several_offers_of_a_pool_the_cheapest_counts() -> None:
    dear, cheap = offer_of(9.0), offer_of(4.0)
    (found,) = price_outlook([Sighting(at_s=NOW_S, offers=(dear, cheap))], after_s=HOUR_S)
    assert found.offer == cheap


def test_gaps_are_filled_with_the_price_before_and_the_order_of_sightings_does_not_count() -> None:
    regular = sightings(*[1.0 + number % 7 for number in range(60)])
    holey = [each for number, each in enumerate(regular) if number not in {13, 14, 29}]
    (found,) = price_outlook(holey[::-1], after_s=HOUR_S)
    assert found.forecast is not None
    filled = []
    for one, two in pairwise(holey):
        filled += [one.offers[0].usd_per_hour] * round((two.at_s - one.at_s) / HOUR_S)
    (same,) = price_outlook(sightings(*filled, holey[-1].offers[0].usd_per_hour), after_s=HOUR_S)
    assert found.forecast == same.forecast


def test_a_burst_of_snapshots_does_not_make_a_year_long() -> None:
    burst = sightings(*[2.0] * 20, gap_s=0.5)
    later = Sighting(at_s=NOW_S + 365 * DAY_S, offers=burst[0].offers)
    (found,) = price_outlook([*burst, later], after_s=HOUR_S)
    assert found.num_seen < MAX_TICKS
    assert found.forecast is not None
