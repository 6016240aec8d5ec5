from __future__ import annotations

from dataclasses import replace

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import Offer, Quote
from tests.support.market import NOW_S, ON_DEMAND, SPOT, offer_of


def test_total_is_compute_and_egress() -> None:
    quote = Quote(
        offer=offer_of(2.0),
        num_nodes=4,
        compute_usd=160.0,
        egress_usd=40.0,
        stage_s=10.0,
        finish_at_s=NOW_S + 1.0,
        valid_until_s=NOW_S + 2.0,
    )
    assert quote.total_usd == 200.0


def test_a_quote_goes_by_the_price_that_is_expected_where_one_is() -> None:
    quote = Quote(
        offer=offer_of(2.0),
        num_nodes=1,
        compute_usd=2.0,
        egress_usd=0.0,
        stage_s=0.0,
        finish_at_s=NOW_S,
        valid_until_s=NOW_S,
    )
    assert quote.usd_per_hour == 2.0
    assert replace(quote, expected_usd_per_hour=1.5).usd_per_hour == 1.5


def test_a_pools_name_tells_it_from_any_other() -> None:
    pools = [offer_of(1.0, kind, zone=zone).pool for kind in (SPOT, ON_DEMAND) for zone in ("a", "b", "")]
    assert pools[0].name == "aws/east/a/p5/spot"
    assert len({pool.name for pool in pools}) == len(pools)


def test_offer_survives_being_stored() -> None:
    offer = offer_of(0.7, SPOT, num_nodes=3, loss_per_hour=0.25, ends_at_s=NOW_S)
    assert codec.from_json(Offer, codec.to_json(offer)) == offer


def test_pools_are_in_order_by_their_names() -> None:
    first, second = offer_of(1.0, zone="a").pool, offer_of(1.0, zone="b").pool
    assert sorted([second, first]) == [first, second]
