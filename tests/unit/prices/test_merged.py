from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.errors import CouldNotLookError, DataError, SpecError, StoreError
from airflow_llmsched.prices.list_prices import ListPrices
from airflow_llmsched.prices.merged import AgedSource, MergedPrices
from airflow_llmsched.units import HOUR_S
from tests.support.market import NOW_S, RESERVED, offer_of

ANOTHER = "for which there is another price, as new or newer"


@dataclass(frozen=True)
class Told:
    """A source that says what it is told to, or fails so."""

    answer: PricedOffers | Exception
    name: str = "told"

    def offers(self, *, now_s: float) -> PricedOffers:
        assert now_s == NOW_S
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def priced(usd_per_hour: float, *, age_s: float, **more: object) -> Offer:
    return replace(offer_of(usd_per_hour, **more), priced_at_s=NOW_S - age_s)  # type: ignore[arg-type]  # the builder's


def told(*offers: Offer, max_age_s: float | None = None, **rejections: int) -> AgedSource:
    return AgedSource(source=Told(PricedOffers(offers=offers, rejections=rejections)), max_age_s=max_age_s)


def merged(*sources: AgedSource) -> PricedOffers:
    return MergedPrices(*sources).offers(now_s=NOW_S)


def test_newest_price_of_a_pool_wins_whichever_source_has_it() -> None:
    old, new = priced(1.0, age_s=600), priced(2.0, age_s=60)
    for sources in ((told(old), told(new)), (told(new), told(old))):
        assert merged(*sources) == PricedOffers(offers=(new,), rejections={ANOTHER: 1})


def test_of_equally_old_prices_the_first_source_is_believed() -> None:
    one, other = priced(1.0, age_s=60), priced(2.0, age_s=60)
    assert merged(told(one), told(other)).offers == (one,)
    assert merged(told(other), told(one)).offers == (other,)


def test_price_older_than_its_own_source_may_be_is_left_out_and_counted() -> None:
    live, listed = priced(1.0, age_s=2 * HOUR_S, zone="a"), priced(3.0, age_s=9000 * HOUR_S, zone="a")
    done = merged(told(live, max_age_s=HOUR_S), told(listed))
    assert done == PricedOffers(offers=(listed,), rejections={"older than their source may be": 1})
    assert merged(told(live, max_age_s=2 * HOUR_S), told(listed)).offers == (live,)


def test_date_in_the_future_does_not_win_for_ever() -> None:
    wrong, right = priced(0.1, age_s=-9000 * HOUR_S), priced(2.0, age_s=60)
    assert merged(told(wrong), told(right)) == PricedOffers(offers=(right,), rejections={"priced in the future": 1})


def test_windows_of_one_pool_do_not_displace_each_other() -> None:
    windows = [
        priced(1.0, age_s=60 + number, capacity_type=RESERVED, starts_at_s=NOW_S + number * HOUR_S)
        for number in range(3)
    ]
    assert merged(told(*windows[:2]), told(*windows[1:])) == PricedOffers(
        offers=tuple(windows), rejections={ANOTHER: 1}
    )


@pytest.mark.parametrize(
    "error", [CouldNotLookError("no answer"), StoreError("no bucket"), DataError("row 3 is damaged")]
)
def test_source_that_fails_is_named_while_another_speaks(error: Exception) -> None:
    known = priced(2.0, age_s=60)
    down = AgedSource(source=Told(error, name="aws"))
    assert merged(down, told(known, torn=2)) == PricedOffers(
        offers=(known,), rejections={"torn": 2, f"whole source (aws: {error})": 1}
    )
    with pytest.raises(CouldNotLookError, match=rf"no source of prices could be read \(aws: {error}\)"):
        merged(down)


def test_bug_in_a_source_is_not_taken_for_an_outage() -> None:
    with pytest.raises(ZeroDivisionError):
        merged(AgedSource(source=Told(ZeroDivisionError())), told(priced(1.0, age_s=1)))


def test_live_prices_stand_above_the_built_in_list() -> None:
    live = priced(30.0, age_s=60, region="us-east-1", zone="", shape="p5.48xlarge")
    done = merged(AgedSource(source=ListPrices()), told(live))
    assert len(done.offers) == len(ListPrices().offers(now_s=NOW_S).offers)
    (found,) = [each for each in done.offers if each.pool == live.pool]
    assert found == replace(live, jurisdiction="US", vendor="nvidia")


def test_capacity_without_a_price_takes_that_of_its_pool_else_of_its_region_and_stays_as_it_is() -> None:
    free = [priced(float("nan"), age_s=1, zone=zone, num_nodes=3) for zone in ("a", "b")]
    other = priced(float("nan"), age_s=1, zone="a", region="west", num_nodes=3)
    named = [priced(5.0, age_s=900, zone="a"), priced(6.0, age_s=800, zone="")]
    done = merged(told(*free, other), told(*named))
    assert [(each.pool.zone, each.usd_per_hour, each.num_nodes) for each in done.offers] == [
        ("", 6.0, None),
        ("a", 5.0, 3),
        ("b", 6.0, 3),
    ]
    assert [each.priced_at_s for each in done.offers] == [NOW_S - 800, NOW_S - 900, NOW_S - 800]
    assert done.rejections == {"without a price": 1}


def test_capacity_is_as_the_first_source_says_at_whatever_price_is_newest() -> None:
    live = priced(5.0, age_s=900, num_nodes=2, vendor="nvidia")
    stored = priced(4.0, age_s=60, num_nodes=9, loss_per_hour=0.3, jurisdiction="EU")
    (offer,) = merged(told(live), told(stored)).offers
    assert (offer.usd_per_hour, offer.priced_at_s, offer.num_nodes) == (4.0, NOW_S - 60, 2)
    assert (offer.loss_per_hour, offer.jurisdiction, offer.vendor) == (0.3, "EU", "nvidia")


def test_needs_a_source_and_an_age_that_means_something() -> None:
    with pytest.raises(SpecError, match="at least one source"):
        MergedPrices()
    with pytest.raises(SpecError, match="above 0"):
        told(max_age_s=0.0)


@given(ages=st.lists(st.integers(0, 5000), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_nothing_is_lost_and_the_order_of_offers_does_not_matter(ages: list[int], seed: int) -> None:
    offers = [priced(1.0 + number, age_s=float(age), zone=f"z{number % 5}") for number, age in enumerate(ages)]
    done = merged(told(*offers, max_age_s=3000.0))
    assert len(done.offers) + sum(done.rejections.values()) == len(offers)
    shuffled = merged(told(*random.Random(seed).sample(offers, len(offers)), max_age_s=3000.0))
    assert [(each.pool, each.priced_at_s) for each in shuffled.offers] == [
        (each.pool, each.priced_at_s) for each in done.offers
    ]
