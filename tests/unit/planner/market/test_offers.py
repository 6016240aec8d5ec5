from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.capacity import DataAt, Offer, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices
from airflow_llmsched.planner.market.offers import (
    NO_HISTORY,
    NO_WEIGHTS,
    QUOTE_LIFE_S,
    OfferTable,
    Ranking,
    Weights,
    rank,
)
from airflow_llmsched.units import GB, HOUR_S, TB
from tests.support.market import NOW_S, ON_DEMAND, RESERVED, SPOT, many_offers, offer_of

TWENTY_HOURS = ShapeNeed(num_nodes=1, work_s=20 * HOUR_S)


def ranked(
    *offers: Offer,
    limit: int = 20,
    weights: Weights = NO_WEIGHTS,
    prices: ExpectedPrices = NO_HISTORY,
    **need: Any,
) -> Ranking:
    requirement = Requirement(**{"by_shape": {"p5": TWENTY_HOURS}, **need})
    return rank(OfferTable.of(offers), requirement, now_s=NOW_S, limit=limit, weights=weights, prices=prices)


def test_cheapest_to_the_end_comes_first() -> None:
    ranking = ranked(offer_of(3.0, zone="a"), offer_of(2.0, zone="b"), offer_of(2.5, zone="c"))
    assert [quote.offer.pool.zone for quote in ranking.quotes] == ["b", "c", "a"]
    assert ranking.quotes[0].total_usd == pytest.approx(2.0 * (20 + 300 / HOUR_S))
    assert ranking.rejections == {}


def test_spot_price_is_shown_for_spot_and_that_of_the_pinned_region() -> None:
    """Field case I2."""
    offers = [
        offer_of(0.50, ON_DEMAND, region="east"),
        offer_of(0.22, SPOT, region="east"),
        offer_of(0.18, SPOT, region="west"),
        offer_of(0.50, ON_DEMAND, region="west"),
    ]
    ranking = ranked(*offers, wish=CapacityWish(regions=("east",), capacity_types=(SPOT,)))
    (quote,) = ranking.quotes
    assert quote.offer.usd_per_hour == 0.22
    assert ranking.rejections == {"in another region": 2, "of another capacity type": 1}


def test_data_that_would_have_to_move_keeps_the_run_where_it_is() -> None:
    """Field case I5: 100 dollars of egress are more than the 20 that the cheaper region saves."""
    data = DataAt(cloud="aws", region="east", num_bytes=5 * TB, egress_usd_per_byte=0.02 / GB)
    ranking = ranked(offer_of(3.0, region="east"), offer_of(2.0, region="west"), data=(data,))
    assert [quote.offer.pool.region for quote in ranking.quotes] == ["east", "west"]
    assert [quote.egress_usd for quote in ranking.quotes] == pytest.approx([0.0, 100.0])
    assert ranking.quotes[1].stage_s == pytest.approx(5000.0)


def test_same_region_name_in_another_cloud_is_another_place() -> None:
    data = DataAt(cloud="aws", region="east", num_bytes=5 * TB, egress_usd_per_byte=0.02 / GB)
    ranking = ranked(offer_of(3.0, cloud="aws"), offer_of(2.9, cloud="gcp"), data=(data,))
    assert [quote.offer.pool.cloud for quote in ranking.quotes] == ["aws", "gcp"]


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (CapacityWish(clouds=("gcp",)), "of another cloud"),
        (CapacityWish(regions=("west",)), "in another region"),
        (CapacityWish(jurisdictions=("EU",)), "under another jurisdiction"),
        (CapacityWish(vendors=("amd",)), "of another vendor"),
        (CapacityWish(capacity_types=(RESERVED,)), "of another capacity type"),
    ],
)
def test_wishes_are_filters_that_no_price_gets_past(wish: CapacityWish, reason: str) -> None:
    free = offer_of(0.0, jurisdiction="US", vendor="nvidia")
    ranking = ranked(free, wish=wish)
    assert (ranking.quotes, ranking.rejections) == ((), {reason: 1})


LIMITS = {
    "clouds": ("aws", "gcp"),
    "regions": ("east", "west"),
    "jurisdictions": ("US", "EU"),
    "vendors": ("nvidia", "amd"),
    "capacity_types": (ON_DEMAND, RESERVED),
}


@given(
    limit=st.sampled_from(sorted(LIMITS)),
    bribe=st.floats(min_value=1e-9, max_value=1e9),
    asked=st.floats(min_value=1e-9, max_value=1e9),
    deadline_h=st.one_of(st.none(), st.floats(min_value=1, max_value=100)),
)
def test_no_price_however_low_and_no_deadline_buys_its_way_past_a_hard_limit(
    limit: str, bribe: float, asked: float, deadline_h: float | None
) -> None:
    inside, outside = LIMITS[limit]

    def offer(price: float, side: Any) -> Offer:
        words = {"clouds": "aws", "regions": "east", "jurisdictions": "US", "vendors": "nvidia"}
        words = {**words, **({} if limit == "capacity_types" else {limit: side})}
        kind = side if limit == "capacity_types" else ON_DEMAND
        return offer_of(
            price,
            kind,
            cloud=words["clouds"],
            region=words["regions"],
            jurisdiction=words["jurisdictions"],
            vendor=words["vendors"],
        )

    deadline_s = None if deadline_h is None else NOW_S + deadline_h * HOUR_S
    done = ranked(
        offer(bribe, outside), offer(asked, inside), wish=CapacityWish(**{limit: (inside,)}), deadline_s=deadline_s
    )
    assert all(quote.offer == offer(asked, inside) for quote in done.quotes)
    assert len(done.quotes) + done.rejections.get("too late for the deadline", 0) == 1


def test_electricity_and_carbon_weigh_nothing_until_they_are_given_a_weight() -> None:
    clean = offer_of(2.1, zone="clean", energy_usd_per_hour=0.1, carbon_g_per_hour=50.0)
    dirty = offer_of(2.0, zone="dirty", energy_usd_per_hour=0.1, carbon_g_per_hour=5000.0)
    untold = offer_of(1.9, zone="untold")
    assert [quote.offer.pool.zone for quote in ranked(clean, dirty, untold).quotes] == ["untold", "dirty", "clean"]
    weighed = ranked(clean, dirty, untold, weights=Weights(usd_per_carbon_g=1e-4))
    assert [quote.offer.pool.zone for quote in weighed.quotes] == ["clean", "dirty"]
    assert weighed.rejections == {"whose carbon is not known": 1}
    assert weighed.quotes[1].carbon_g == pytest.approx(5000.0 * (20 + 300 / HOUR_S))
    assert weighed.quotes[1].total_usd == pytest.approx(2.0 * (20 + 300 / HOUR_S))
    assert weighed.quotes[1].weighed_usd == pytest.approx(2.5 * (20 + 300 / HOUR_S))
    assert weighed.quotes[1].extra_usd_per_hour == pytest.approx(0.5)


def test_electricity_is_weighed_in_dollars() -> None:
    frugal, hungry = offer_of(2.1, zone="a", energy_usd_per_hour=0.1), offer_of(2.0, zone="b", energy_usd_per_hour=0.3)
    for weight, first in ((0.4, "b"), (0.6, "a")):
        done = ranked(frugal, hungry, offer_of(9.0), weights=Weights(usd_per_energy_usd=weight))
        assert done.quotes[0].offer.pool.zone == first
        assert done.rejections == {"whose electricity is not known": 1}
    with pytest.raises(SpecError, match="usd_per_energy_usd"):
        Weights(usd_per_energy_usd=-1.0)


def test_zone_without_a_region_wide_price_is_still_compared_with_its_neighbours() -> None:
    """On-demand that is priced in one zone only makes dearer spot in another zone of that region pointless."""
    ranking = ranked(offer_of(4.0, ON_DEMAND, zone="a"), offer_of(4.0, SPOT, zone="b"), offer_of(3.9, SPOT, zone="c"))
    assert [quote.offer.pool.zone for quote in ranking.quotes] == ["c", "a"]


def test_spot_dearer_than_on_demand_is_no_offer() -> None:
    """Seen in the catalogues; on-demand is then both cheaper and safer."""
    ranking = ranked(offer_of(4.0, ON_DEMAND, zone="a"), offer_of(4.5, SPOT, zone="b"), offer_of(1.2, SPOT, zone="c"))
    assert [quote.offer.usd_per_hour for quote in ranking.quotes] == [1.2, 4.0]
    assert ranking.rejections == {"of spot capacity that costs no less than on-demand there": 1}


def test_spot_as_dear_as_on_demand_that_nobody_gets_is_an_offer() -> None:
    """On-demand capacity without quota is neither cheaper nor safer: it is none."""
    scarce = offer_of(4.0, ON_DEMAND, zone="a", num_nodes=0)
    ranking = ranked(scarce, offer_of(4.0, SPOT, zone="b"), by_shape={"p5": ShapeNeed(num_nodes=2, work_s=HOUR_S)})
    assert [quote.offer.pool.zone for quote in ranking.quotes] == ["b"]
    assert ranking.rejections == {"with too few nodes": 1}


def test_spot_is_compared_with_on_demand_of_its_own_place_and_shape_only() -> None:
    offers = [offer_of(9.0, SPOT, region="west"), offer_of(4.0, ON_DEMAND, region="east"), offer_of(1.0, shape="t4")]
    assert [quote.offer.usd_per_hour for quote in ranked(*offers).quotes] == [4.0, 9.0]


def test_offer_without_a_price_is_counted_not_guessed() -> None:
    ranking = ranked(offer_of(float("nan")), offer_of(2.0, zone="b"))
    assert len(ranking.quotes) == 1
    assert ranking.rejections == {"without a price": 1}


def test_other_shapes_compete_with_the_run_planned_for_them() -> None:
    by_shape = {"p5": TWENTY_HOURS, "p4": ShapeNeed(num_nodes=2, work_s=30 * HOUR_S)}
    ranking = ranked(
        offer_of(10.0, shape="p5"), offer_of(3.0, shape="p4"), offer_of(0.1, shape="t4"), by_shape=by_shape
    )
    assert [(quote.offer.pool.shape, quote.num_nodes) for quote in ranking.quotes] == [("p4", 2), ("p5", 1)]
    assert ranking.rejections == {"of a node shape the run was not planned for": 1}


def test_interruptions_cost_time_and_with_it_money() -> None:
    restless, calm = offer_of(1.0, SPOT, zone="a", loss_per_hour=1.0), offer_of(1.3, SPOT, zone="b", loss_per_hour=0.0)
    ranking = ranked(restless, calm, rework_s=0.5 * HOUR_S)
    assert [quote.offer.pool.zone for quote in ranking.quotes] == ["b", "a"]
    assert ranking.quotes[1].finish_at_s - NOW_S == pytest.approx(30 * HOUR_S + 300)


def test_a_gang_is_charged_for_the_interruptions_of_all_its_nodes() -> None:
    """Half an hour is lost 0.1 times an hour with one node, and 0.1 x (0.9 + 0.1 x 64) = 0.73 times with 64."""
    pool = [offer_of(1.0, SPOT, zone="a", loss_per_hour=0.1), offer_of(1.2, zone="b")]
    need = {"rework_s": 0.5 * HOUR_S, "shared_loss_ratio": 0.9}
    one, many = (
        ranked(*pool, by_shape={"p5": ShapeNeed(num_nodes=num_nodes, work_s=20 * HOUR_S)}, **need)
        for num_nodes in (1, 64)
    )
    assert [quote.offer.pool.zone for quote in one.quotes] == ["a", "b"]
    assert [quote.offer.pool.zone for quote in many.quotes] == ["b", "a"]
    held_s = [quote.finish_at_s - NOW_S - 300.0 for quote in (one.quotes[0], many.quotes[1])]
    assert held_s == pytest.approx([21.0 * HOUR_S, 27.3 * HOUR_S])
    as_one = ranked(
        *pool, by_shape={"p5": ShapeNeed(num_nodes=64, work_s=20 * HOUR_S)}, **{**need, "shared_loss_ratio": 1.0}
    )
    assert [quote.offer.pool.zone for quote in as_one.quotes] == ["a", "b"]


def test_spot_capacity_is_charged_at_the_price_that_is_expected_while_it_is_held() -> None:
    """One zone's price has just trebled, as it did before, always for an hour; another's stays half as high again."""
    spiky, steady, demand = offer_of(6.0, SPOT, zone="a"), offer_of(3.0, SPOT, zone="b"), offer_of(9.0, zone="c")
    seen = {
        spiky.pool.name: [(NOW_S - hour * HOUR_S, 6.0 if hour % 8 == 0 else 2.0) for hour in range(1, 60)],
        steady.pool.name: [(NOW_S - hour * HOUR_S, 3.0) for hour in range(1, 60)],
    }
    assert [quote.offer.pool.zone for quote in ranked(spiky, steady, demand).quotes] == ["b", "a", "c"]
    foreseen = ranked(spiky, steady, demand, prices=ExpectedPrices(seen, now_s=NOW_S))
    assert [quote.offer.pool.zone for quote in foreseen.quotes] == ["a", "b", "c"]
    first, second, _ = foreseen.quotes
    assert first.offer.usd_per_hour == 6.0
    assert first.compute_usd == pytest.approx(first.usd_per_hour * (20 + 300 / HOUR_S))
    assert 2.0 < first.usd_per_hour < 3.0
    assert (second.expected_usd_per_hour, second.usd_per_hour) == (None, 3.0)
    dearer = ranked(spiky, steady, offer_of(5.0, zone="c"), prices=ExpectedPrices(seen, now_s=NOW_S))
    assert dearer.rejections == {"of spot capacity that costs no less than on-demand there": 1}


def test_reservation_counts_only_within_its_own_time() -> None:
    later = offer_of(1.0, RESERVED, zone="a", starts_at_s=NOW_S + 5 * HOUR_S, ends_at_s=NOW_S + 40 * HOUR_S)
    short = offer_of(0.5, RESERVED, zone="b", starts_at_s=NOW_S, ends_at_s=NOW_S + 10 * HOUR_S)
    ranking = ranked(later, short)
    (quote,) = ranking.quotes
    assert quote.finish_at_s == pytest.approx(NOW_S + 25 * HOUR_S + 300)
    assert ranking.rejections == {"that end before the run does": 1}
    assert ranked(later, deadline_s=NOW_S + 24 * HOUR_S).rejections == {"too late for the deadline": 1}


def test_too_few_nodes_are_none() -> None:
    by_shape = {"p5": ShapeNeed(num_nodes=8, work_s=HOUR_S)}
    ranking = ranked(offer_of(1.0, zone="a", num_nodes=7), offer_of(2.0, zone="b", num_nodes=8), by_shape=by_shape)
    assert [quote.offer.pool.zone for quote in ranking.quotes] == ["b"]
    assert ranking.rejections == {"with too few nodes": 1}


def test_quote_holds_no_longer_than_its_price_or_its_offer() -> None:
    plain, block = offer_of(1.0, zone="a"), offer_of(1.0, RESERVED, zone="b", ends_at_s=NOW_S + 25 * HOUR_S)
    first, second = ranked(plain, block).quotes
    assert first.valid_until_s == NOW_S - 60.0 + QUOTE_LIFE_S
    assert second.valid_until_s == NOW_S - 60.0 + QUOTE_LIFE_S


def test_refusal_is_explained_by_its_reasons_the_most_frequent_first() -> None:
    offers = [offer_of(1.0, cloud="gcp", zone=str(number)) for number in range(3)]
    ranking = ranked(*offers, offer_of(1.0, num_nodes=0), wish=CapacityWish(clouds=("aws",)))
    assert ranking.explain() == "3 of another cloud; 1 with too few nodes"


@given(prices=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_order_of_the_offers_does_not_matter(prices: list[float], seed: int) -> None:
    offers = [offer_of(price, zone=f"z{number:02}") for number, price in enumerate(prices)]
    shuffled = random.Random(seed).sample(offers, len(offers))
    assert ranked(*offers) == ranked(*shuffled)


def test_nothing_on_offer_is_no_quote() -> None:
    assert ranked() == Ranking(quotes=(), rejections={})


def test_fifty_thousand_rows_are_ranked_while_one_waits() -> None:
    table = OfferTable.of(many_offers(50_000, seed=7))
    need = Requirement(
        by_shape={f"shape-{number}": ShapeNeed(num_nodes=2, work_s=HOUR_S * (1 + number)) for number in range(30)},
        wish=CapacityWish(clouds=("aws", "gcp"), capacity_types=(SPOT, ON_DEMAND)),
        data=(DataAt(cloud="aws", region="region-3", num_bytes=TB, egress_usd_per_byte=0.02 / GB),),
        rework_s=600.0,
    )
    seen = [offer.pool.name for offer in table.offers if offer.pool.capacity_type is SPOT][:100]
    history = {name: [(NOW_S - hour * HOUR_S, 9.0 if hour % 8 else 20.0) for hour in range(1, 72)] for name in seen}
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        ranking = rank(table, need, now_s=NOW_S, prices=ExpectedPrices(history, now_s=NOW_S))
        times_s.append(time.perf_counter() - start_s)
    assert len(ranking.quotes) == 20
    totals = [quote.total_usd for quote in ranking.quotes]
    assert totals == sorted(totals)
    assert min(times_s) < 0.5  # ten times its limit in the bench: this machine may be busy


def test_node_counts_of_one_shape_compete_as_offers_do() -> None:
    """Two nodes are dearer to the end than one, and in time."""
    more = {"p5": (ShapeNeed(num_nodes=2, work_s=11 * HOUR_S), ShapeNeed(num_nodes=4, work_s=6 * HOUR_S))}
    offers = (offer_of(1.0, zone="a"), offer_of(1.5, zone="b", num_nodes=2))
    ranking = ranked(*offers, more_nodes=more)
    assert [(each.offer.pool.zone, each.num_nodes) for each in ranking.quotes[:3]] == [("a", 1), ("a", 2), ("a", 4)]
    assert [each.num_nodes for each in ranking.quotes if each.offer.pool.zone == "b"] == [1, 2]
    assert not ranking.rejections
    in_time = ranked(*offers, more_nodes=more, deadline_s=NOW_S + 12 * HOUR_S)
    assert [each.num_nodes for each in in_time.quotes] == [2, 4, 2]


def test_an_offer_that_serves_no_count_falls_out_once_and_for_what_keeps_it_from_the_fewest() -> None:
    more = {"p5": (ShapeNeed(num_nodes=2, work_s=19 * HOUR_S),)}
    ranking = ranked(offer_of(1.0), more_nodes=more, deadline_s=NOW_S + HOUR_S)
    assert ranking.rejections == {"too late for the deadline": 1}
