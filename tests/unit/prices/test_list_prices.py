from __future__ import annotations

import math

import pytest

from airflow_llmsched.domain.capacity import Offer, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.planner.market.offers import OfferTable, rank
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.prices.list_prices import ListPrices, rows
from airflow_llmsched.units import HOUR_S
from tests.support.market import NOW_S, ON_DEMAND


@pytest.fixture(scope="module")
def offers() -> tuple[Offer, ...]:
    priced = ListPrices().offers(now_s=NOW_S)
    assert priced.rejections == {}
    return priced.offers


def price(offers: tuple[Offer, ...], shape: str, region: str) -> float:
    (offer,) = [each for each in offers if (each.pool.shape, each.pool.region) == (shape, region)]
    return offer.usd_per_hour


def test_every_row_names_its_source_with_an_address_its_date_vendor_and_jurisdiction(
    offers: tuple[Offer, ...],
) -> None:
    assert 60 <= len(offers) <= 120
    for offer in offers:
        assert "https://" in offer.source, offer
        assert 1.7e9 < offer.priced_at_s < NOW_S, offer
        assert offer.vendor, offer
        assert offer.jurisdiction, offer
        assert offer.pool.capacity_type is ON_DEMAND
        assert 1.0 < offer.usd_per_hour < 200.0, offer


def test_no_pool_is_listed_twice(offers: tuple[Offer, ...]) -> None:
    assert len({offer.pool for offer in offers}) == len(offers)


@pytest.mark.parametrize(
    ("shape", "region", "usd_per_hour"),
    [
        ("p5.48xlarge", "us-east-1", 55.04),
        ("p4d.24xlarge", "eu-central-1", 40.94475),
        ("a3-highgpu-8g", "us-east4", 87.83247),  # 9.46006 for the host, 78.37241 for its accelerators
        ("a3-ultragpu-8g", "us-central1", 86.75992),
        ("Standard_ND96isr_H100_v5", "westus", 127.816),
    ],
)
def test_price_is_what_the_source_says(offers: tuple[Offer, ...], shape: str, region: str, usd_per_hour: float) -> None:
    assert price(offers, shape, region) == pytest.approx(usd_per_hour, abs=1e-5)


def test_the_two_tables_of_list_prices_agree_where_both_have_one(offers: tuple[Offer, ...]) -> None:
    """The planner's node shapes carry a price too: that of us-east-1."""
    both = [each for each in offers if each.pool.shape in node_shapes() and each.pool.region == "us-east-1"]
    assert len(both) >= 5
    for offer in both:
        assert offer.usd_per_hour == pytest.approx(node_shapes()[offer.pool.shape].usd_per_hour)


def test_every_listed_shape_is_one_that_plans_can_be_made_for() -> None:
    for row in rows():
        assert row.pool.shape in node_shapes(), row.pool.shape
        assert row.num_accelerators == node_shapes()[row.pool.shape].num_accelerators, row.pool.shape


def test_hosts_and_accelerators_are_listed_apart_and_in_pairs() -> None:
    parts: dict[tuple[str, str], set[str]] = {}
    for row in rows():
        parts.setdefault((row.pool.shape, row.pool.region), set()).add(row.part)
    assert {frozenset(each) for each in parts.values()} == {
        frozenset({"whole"}),
        frozenset({"host", "accelerators"}),
    }


def test_planning_offline_finds_the_cheapest_place_in_one_jurisdiction(offers: tuple[Offer, ...]) -> None:
    need = Requirement(
        by_shape={"p4d.24xlarge": ShapeNeed(num_nodes=1, work_s=HOUR_S)}, wish=CapacityWish(jurisdictions=("EU",))
    )
    best = rank(OfferTable.of(offers), need, now_s=NOW_S).quotes[0]
    assert (best.offer.pool.region, math.isfinite(best.total_usd)) == ("eu-west-1", True)
