"""What the way of a checkpoint costs, and that it depends on where it lies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.capacity import Offer, Pool, Quote
from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.checkpoint_way import EGRESS, SavedState, brought, checkpoint_bytes
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.units import GB
from tests.support.specs import load_small

SAVED = SavedState(num_bytes=500 * GB)


def quote(place: str) -> Quote:
    cloud, region = place.split("/")
    pool = Pool(cloud=cloud, region=region, zone="", shape="s", capacity_type=CapacityType.ON_DEMAND)
    offer = Offer(pool=pool, usd_per_hour=36.0, priced_at_s=0.0, source="test")
    return Quote(
        offer=offer,
        num_nodes=2,
        compute_usd=100.0,
        egress_usd=1.0,
        stage_s=10.0,
        finish_at_s=1000.0,
        valid_until_s=2000.0,
    )


def way(place: str, *, region: str, saved: SavedState | None = SAVED) -> tuple[float, float, float, float]:
    (found,) = brought([quote(place)], saved=saved, region=region)
    return found.stage_s, found.egress_usd, found.compute_usd, found.finish_at_s


UNCHANGED = (10.0, 1.0, 100.0, 1000.0)


def test_leaving_a_region_takes_time_in_which_nodes_are_paid_for_and_the_price_of_its_bytes() -> None:
    # 500 GB at 1 GB/s, in which two nodes of $36 an hour cost $10; 500 GB at $0.02
    assert way("aws/us-west-2", region="aws/us-east-1") == pytest.approx((510.0, 11.0, 110.0, 1500.0))


def test_leaving_a_cloud_costs_what_the_internet_does() -> None:
    for cloud, egress in EGRESS.items():
        _, egress_usd, *_ = way("elsewhere/r", region=f"{cloud}/r")
        assert egress_usd == pytest.approx(1.0 + 500 * egress.to_cloud_usd_per_gb)
        assert egress.to_cloud_usd_per_gb > egress.to_region_usd_per_gb


def test_where_it_lies_it_costs_nothing() -> None:
    assert way("aws/us-west-2", region="aws/us-west-2") == UNCHANGED


def test_the_way_back_costs_as_much_as_the_way_there() -> None:
    east, west = "aws/us-east-1", "aws/us-west-2"
    assert way(west, region=east) == way(east, region=west) != UNCHANGED


@pytest.mark.parametrize(("region", "saved"), [("", SAVED), ("lustre", SAVED), ("aws/us-east-1", None)])
def test_what_every_region_reads_or_nobody_knows_the_size_of_adds_nothing(
    region: str, saved: SavedState | None
) -> None:
    assert way("aws/us-west-2", region=region, saved=saved) == UNCHANGED


def test_a_cloud_without_a_price_counts_for_its_time_alone_unless_it_is_told() -> None:
    assert way("onprem/b", region="onprem/a")[:2] == (510.0, 1.0)
    told = replace(SAVED, egress_usd_per_gb=0.05, bytes_per_s=2.0 * GB)
    for place in ("onprem/b", "aws/us-east-1"):
        assert way(place, region="onprem/a", saved=told)[:2] == pytest.approx((260.0, 26.0))


def test_a_checkpoint_holds_weights_and_optimizer_state() -> None:
    job = job_of(load_small())
    assert job is not None
    job = replace(job, precision=replace(job.precision, parameters=NumberFormat.BF16))
    num_parameters = count_parameters(job.model).total
    # AdamW: two states and a master copy of 4 bytes each beside weights of 2 bytes
    assert checkpoint_bytes(job) == num_parameters * 14


def test_of_lora_only_the_factors_are_saved() -> None:
    whole = job_of(load_small())
    assert whole is not None
    job = replace(whole, lora_rank=8)
    share = job.num_adapter_parameters / count_parameters(job.model).total
    assert 0 < checkpoint_bytes(job) == checkpoint_bytes(whole) * share
