from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp import skus
from airflow_llmsched.clouds.gcp.skus import Rates
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.price_rows import offers_of
from tests.support.gcp_builders import AT_S
from tests.support.gcp_skus import REGION, a3_list, sku

A3 = {
    "name": "a3-highgpu-8g",
    "guestCpus": 208,
    "memoryMb": 1872 * 1024,
    "accelerators": [{"guestAcceleratorType": "nvidia-h100-80gb", "guestAcceleratorCount": 8}],
}
N2 = {"name": "n2-standard-8", "guestCpus": 8, "memoryMb": 32 * 1024}


def prices(
    lines: list[dict[str, Any]], machine_type: dict[str, Any] = A3, *, region: str = REGION
) -> dict[CapacityType, float]:
    rates = Rates.of(lines, regions=[region])
    rows = list(skus.machine_rows(machine_type, rates, region=region, now_s=AT_S))
    return {each.pool.capacity_type: each.usd_per_hour for each in offers_of(rows, now_s=AT_S).offers}


def test_a_machine_costs_its_cores_its_memory_and_its_accelerators() -> None:
    found = prices(a3_list())
    assert found[CapacityType.ON_DEMAND] == pytest.approx(208 * 0.03 + 1872 * 0.003 + 8 * 9.8)
    assert found[CapacityType.SPOT] == pytest.approx(208 * 0.01 + 1872 * 0.001 + 8 * 2.5)


def test_a_machine_without_accelerators_is_priced_whole() -> None:
    lines = [
        sku("N2 Instance Core running in Americas", "CPU", 31_611_000),
        sku("N2 Instance Ram running in Americas", "RAM", 4_237_000),
        sku("N2D AMD Instance Core running in Americas", "CPU", 99_000_000),
    ]
    assert prices(lines, N2) == {CapacityType.ON_DEMAND: pytest.approx(8 * 0.031611 + 32 * 0.004237)}


def test_the_oldest_series_has_both_halves_in_one_group() -> None:
    lines = [
        sku("N1 Predefined Instance Core running in Americas", "N1Standard", 30_000_000),
        sku("N1 Predefined Instance Ram running in Americas", "N1Standard", 4_000_000, unit="GiBy.h"),
    ]
    assert prices(lines[:1], {**N2, "name": "n1-standard-8"}) == {}
    assert prices(lines, {**N2, "name": "n1-standard-8"}) == {CapacityType.ON_DEMAND: pytest.approx(0.24 + 0.128)}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_half_a_price_is_none(missing: int) -> None:
    lines = a3_list()[:3]
    del lines[missing]
    assert prices(lines) == {}


@pytest.mark.parametrize(
    "decoy",
    [
        sku("Commitment v1: A3 Cpu in Americas", "CPU", 1, usage="Commit1Yr"),
        sku("A3 Instance Core running in Americas", "CPU", 1, unit="mo"),
        sku("A3 Instance Core running in Americas", "CPU", 0),
        sku("A3 Custom Instance Core running in Americas", "CPU", 999_000_000),
        sku("Sole Tenancy Premium for A3 Instance Core running in Americas", "CPU", 999_000_000),
        sku("A3 Instance Core running in Americas - DWS Calendar Mode", "CPU", 999_000_000),
        sku("A3 Instance Core running in Netherlands", "CPU", 999_000_000, regions=("europe-west4",)),
        sku("A3Plus Instance Core running in Americas", "CPU", 999_000_000),
        sku("Nvidia H100 80GB Plus GPU running in Americas", "GPU", 999_000_000),
        {"description": "A3 Instance Core running in Americas", "category": {}},
    ],
    ids=lambda each: each["description"][:40],
)
def test_prices_of_other_things_and_ways_are_left_aside(decoy: dict[str, Any]) -> None:
    assert prices([decoy, *a3_list()]) == prices(a3_list())


def test_of_two_prices_for_the_same_the_dearer_counts() -> None:
    twice = [*a3_list(), sku("A3 Instance Core running in Iowa", "CPU", 40_000_000)]
    assert prices(twice)[CapacityType.ON_DEMAND] == pytest.approx(208 * 0.04 + 1872 * 0.003 + 8 * 9.8)


def test_another_currency_is_not_taken_for_dollars() -> None:
    lines = [{**each} for each in a3_list()[:3]]
    lines[2] = sku("Nvidia H100 80GB GPU running in Americas", "GPU", 1, units=9, currency="EUR")
    assert prices(lines) == {}
    lines[0] = sku("A3 Instance Core running in Americas", "CPU", 30_000_000, currency="EUR")
    assert prices(lines) == {}


def test_a_shape_or_region_without_words_has_no_price() -> None:
    assert prices(a3_list(), {**A3, "name": "z9-highgpu-8g"}) == {}
    assert prices(a3_list(), region="europe-west4") == {}
    unknown = [{"guestAcceleratorType": "nvidia-x9", "guestAcceleratorCount": 8}]
    assert prices(a3_list(), {**A3, "accelerators": unknown}) == {}


@pytest.mark.parametrize(("shape", "num_chips"), [("v5litepod-16", 16), ("v5litepod-4", 4)])
def test_a_slice_costs_its_chips(shape: str, num_chips: int) -> None:
    rates = Rates.of(a3_list(), regions=[REGION])
    rows = list(skus.slice_rows(shape, rates, region=REGION, now_s=AT_S))
    assert {each.pool.capacity_type: each.amount_per_hour for each in rows} == {
        CapacityType.ON_DEMAND: pytest.approx(1.2 * num_chips),
        CapacityType.SPOT: pytest.approx(0.6 * num_chips),
    }


def test_older_tpus_are_priced_in_other_units_and_have_none() -> None:
    rates = Rates.of(a3_list(), regions=[REGION])
    assert list(skus.slice_rows("v3-8", rates, region=REGION, now_s=AT_S)) == []


def test_no_price_is_made_up_for_an_amount_that_is_not_there() -> None:
    empty = sku("A3 Instance Core running in Americas", "CPU", 1)
    empty["pricingInfo"] = []
    assert Rates.of([empty], regions=[REGION]).all == ()
    assert all(math.isfinite(each.amount_per_hour) for each in Rates.of(a3_list(), regions=[REGION]).all)
