from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.prices import PricedOffers, PriceRow, PriceUnit
from airflow_llmsched.planner.market.price_rows import CLOCK_SKEW_S, explained, offers_of
from airflow_llmsched.units import HOUR_S
from tests.support.market import NOW_S, ON_DEMAND, RESERVED, SPOT
from tests.support.prices import ACCELERATORS, HOST, row_of

HALF_MISSING = "whose other half, host or accelerators, has no price there"


def priced(*rows: PriceRow, **more: object) -> PricedOffers:
    return offers_of(rows, now_s=NOW_S, **more)  # type: ignore[arg-type]  # the tests' own names


def prices(*rows: PriceRow) -> dict[str, float]:
    return {offer.pool.zone: offer.usd_per_hour for offer in priced(*rows).offers}


def only(*rows: PriceRow) -> Offer:
    (offer,) = priced(*rows).offers
    return offer


def test_a_whole_price_becomes_an_offer_with_all_that_the_row_tells() -> None:
    row = row_of(3.0, SPOT, zone="b", num_nodes=4, loss_per_hour=0.1, jurisdiction="US", vendor="nvidia")
    offer = only(row)
    assert (offer.pool, offer.usd_per_hour, offer.source) == (row.pool, 3.0, "test")
    assert (offer.num_nodes, offer.loss_per_hour, offer.jurisdiction, offer.vendor) == (4, 0.1, "US", "nvidia")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (row_of(3.0, currency=""), "without a currency"),
        (row_of(3.0, currency="EUR"), "in EUR, for which no rate is given"),
        (row_of(3.0, currency="usd"), "in usd, for which no rate is given"),
        (row_of(float("nan")), "without a price"),
        (row_of(float("inf")), "without a price"),
        (row_of(0.0), "with a price that is not above 0"),
        (row_of(-1.0), "with a price that is not above 0"),
        (row_of(3.0, unit=PriceUnit.ACCELERATOR), "for one accelerator of nobody knows how many"),
        (row_of(3.0, unit=PriceUnit.ACCELERATOR, num_accelerators=0), "for one accelerator of nobody knows how many"),
        (row_of(3.0, priced_at_s=float("nan")), "without a date"),
        (row_of(3.0, priced_at_s=NOW_S + CLOCK_SKEW_S + 1), "priced in the future"),
        (row_of(3.0, RESERVED, starts_at_s=NOW_S, ends_at_s=NOW_S), "that end before they start"),
        (row_of(3.0, part=HOST), HALF_MISSING),
        (row_of(3.0, part=ACCELERATORS), HALF_MISSING),
    ],
)
def test_what_is_not_understood_is_refused_and_counted(row: PriceRow, reason: str) -> None:
    assert priced(row, row_of(2.0, region="west")).rejections == {reason: 1}
    assert len(priced(row, row_of(2.0, region="west")).offers) == 1


def test_another_currency_counts_at_the_rate_that_is_given_for_it() -> None:
    done = priced(row_of(10.0, currency="EUR"), usd_per_unit_of={"USD": 1.0, "EUR": 1.1})
    assert [offer.usd_per_hour for offer in done.offers] == pytest.approx([11.0])


def test_price_of_one_accelerator_is_times_as_many_as_the_node_has() -> None:
    assert only(row_of(2.5, unit=PriceUnit.ACCELERATOR, num_accelerators=8)).usd_per_hour == 20.0
    assert only(row_of(2.5, num_accelerators=8)).usd_per_hour == 2.5


def test_host_and_its_accelerators_add_up() -> None:
    """Google's us-east4: 9.46006 for the host, 9.79655 for each of eight H100."""
    host = row_of(9.46006, part=HOST, source="hosts", num_nodes=9, loss_per_hour=0.2)
    per_gpu = row_of(
        9.79655,
        part=ACCELERATORS,
        unit=PriceUnit.ACCELERATOR,
        num_accelerators=8,
        source="gpus",
        num_nodes=5,
        priced_at_s=NOW_S - 600,
        vendor="nvidia",
    )
    offer = only(host, per_gpu)
    assert offer.usd_per_hour == pytest.approx(87.83246)
    assert (offer.source, offer.priced_at_s, offer.vendor) == ("hosts + gpus", NOW_S - 600, "nvidia")
    assert (offer.num_nodes, offer.loss_per_hour) == (5, 0.2)
    assert priced(host, per_gpu).rejections == {}


def test_half_that_is_priced_for_the_region_serves_every_zone_whose_other_half_is_priced_by_zone() -> None:
    host = row_of(1.0, part=HOST)
    gpus = [row_of(20.0, part=ACCELERATORS, zone="a"), row_of(30.0, part=ACCELERATORS, zone="b")]
    assert prices(host, *gpus) == {"a": 21.0, "b": 31.0}
    assert priced(host, *gpus).rejections == {}
    assert prices(host, *gpus, row_of(2.0, part=HOST, zone="b")) == {"a": 21.0, "b": 32.0}


def test_half_of_one_zone_is_not_joined_with_the_other_half_of_another_or_of_another_kind() -> None:
    host = row_of(1.0, part=HOST, zone="a")
    others = [
        row_of(20.0, part=ACCELERATORS, zone="b"),
        row_of(20.0, SPOT, part=ACCELERATORS, zone="a"),
        row_of(20.0, part=ACCELERATORS, zone="a", region="west"),
        row_of(20.0, part=ACCELERATORS, zone="a", shape="a2"),
        row_of(20.0, part=ACCELERATORS, zone="a", cloud="aws"),
    ]
    done = priced(host, *others)
    assert done.offers == ()
    assert done.rejections == {HALF_MISSING: 6}


def test_price_of_one_zone_says_nothing_of_its_region() -> None:
    """Seen in the catalogues: spot is priced by zone, on-demand by region, some zones not at all."""
    assert prices(row_of(3.0, SPOT, zone="a"), row_of(9.0, ON_DEMAND, zone="")) == {"a": 3.0, "": 9.0}
    assert prices(row_of(3.0, SPOT, zone="a")) == {"a": 3.0}


def test_newest_of_several_prices_counts_and_of_equally_old_ones_the_dearer() -> None:
    old, new = row_of(5.0, priced_at_s=NOW_S - 9), row_of(4.0, priced_at_s=NOW_S - 3)
    assert only(old, new) == only(new, old)
    assert only(old, new).usd_per_hour == 4.0
    assert only(row_of(4.0), row_of(5.0)).usd_per_hour == only(row_of(5.0), row_of(4.0)).usd_per_hour == 5.0
    assert priced(old, new, row_of(3.0, priced_at_s=NOW_S - 5)).rejections == {"named more than once": 2}


def test_time_windows_of_one_pool_are_offers_of_their_own() -> None:
    today = row_of(5.0, RESERVED, starts_at_s=NOW_S, ends_at_s=NOW_S + HOUR_S)
    later = row_of(4.0, RESERVED, starts_at_s=NOW_S + HOUR_S, ends_at_s=NOW_S + 2 * HOUR_S)
    assert [offer.usd_per_hour for offer in priced(later, today).offers] == [5.0, 4.0]


@given(
    amounts=st.lists(st.sampled_from([-1.0, 0.0, float("nan"), 1.0, 2.0, 3.0]), min_size=1, max_size=20),
    seed=st.integers(0, 99),
)
def test_no_row_is_lost_whatever_their_order(amounts: list[float], seed: int) -> None:
    rows = [row_of(amount, zone=f"z{number % 7}") for number, amount in enumerate(amounts)]
    done = priced(*rows)
    assert len(done.offers) + sum(done.rejections.values()) == len(rows)
    assert priced(*random.Random(seed).sample(rows, len(rows))) == done
    assert all(offer.usd_per_hour > 0 for offer in done.offers)


def test_reasons_are_told_most_frequent_first() -> None:
    assert explained({"b": 1, "a": 1, "c": 7}) == "7 c; 1 a; 1 b"
