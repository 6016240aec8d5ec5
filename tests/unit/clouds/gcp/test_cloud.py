from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp.cloud import GcpCloud
from airflow_llmsched.domain.capacity import Pool, Requirement, ShapeNeed
from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import CloudFeature
from airflow_llmsched.registry import AdapterGroup
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.gcp_cloud import IMAGE, SHAPE, GcpCloudHarness, TpuHarness, gcp_pool
from tests.support.gcp_fixtures import harness
from tests.support.source import ROOT

__all__ = ["harness"]  # a fixture is used by its name


def cloud(**options: Any) -> GcpCloud:
    return GcpCloud(project="p", regions=["us-central1"], image=IMAGE, **options)


def test_it_is_registered_under_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][AdapterGroup.CLOUDS]["gcp"] == f"{GcpCloud.__module__}:{GcpCloud.__name__}"
    assert GcpCloud.name == "gcp"
    assert GcpCloud.features == {CloudFeature.TOPOLOGY, CloudFeature.QUEUED}


def test_nothing_is_asked_until_something_is_needed() -> None:
    made = cloud(queued_shapes=["a3-megagpu-8g"])
    assert made.lease_id(gcp_pool(), lease_key()) == f"us-central1-a/vm/{lease_key().name}"
    assert made.lease_id(gcp_pool(shape="a3-megagpu-8g"), lease_key()).split("/")[1] == "flex"
    assert made.lease_id(gcp_pool(shape="v5litepod-16"), lease_key()).split("/")[1] == "tpu"
    assert made.leases([]) == {}


@pytest.mark.parametrize("pool", [replace(gcp_pool(), cloud="aws"), replace(gcp_pool(), zone="")])
def test_a_pool_that_is_not_googles_or_has_no_zone_is_refused(pool: Pool) -> None:
    with pytest.raises(SpecError, match="no zone of Google's"):
        cloud().lease_id(pool, lease_key())


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SpecError, match="disk_gib"):
        cloud(machine={"disk_gigabytes": 100})


@pytest.mark.parametrize(("tpu", "told"), [({"zones": []}, "zones: unknown"), ({"queue_s": 1.0}, "runtime_version")])
def test_what_slices_are_made_of_has_to_be_said(tpu: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        cloud(tpu=tpu)


def test_machines_and_slices_are_asked_for_at_once(harness: GcpCloudHarness) -> None:
    slices = TpuHarness()
    try:
        leases = [
            slices.cloud.acquire(
                offer, key=lease_key(number), origin=origin(), num_nodes=1, until_s=slices.now_s() + LEASE_S
            )
            for number, offer in enumerate([harness.offer(), slices.offer()], start=1)
        ]
        assert [each.id.split("/")[1] for each in leases] == ["vm", "tpu"]
        assert set(slices.cloud.leases([each.id for each in leases])) == {each.id for each in leases}
        assert {each.id for each in slices.cloud.find(leases[0].key.run)} == {each.id for each in leases}
        need = Requirement(
            by_shape={shape: ShapeNeed(num_nodes=1, work_s=1.0) for shape in (SHAPE, slices.offer().pool.shape)}
        )
        assert {each.pool.shape for each in slices.cloud.offers(need)} == set(need.by_shape)
    finally:
        slices.close()


def test_lists_in_options_may_be_lists_as_json_has_them() -> None:
    cloud(machine={"nics": [{"network": "n"}], "scopes": ["s"], "network_tags": ["t"], "disk_gib": 100})


def test_no_nodes_are_not_rented(harness: GcpCloudHarness) -> None:
    until_s = harness.now_s() + LEASE_S
    with pytest.raises(SpecError, match="at least one"):
        harness.cloud.acquire(harness.offer(), key=lease_key(), origin=origin(), num_nodes=0, until_s=until_s)
    assert harness.server.calls == []


def test_an_unknown_shape_is_offered_by_nobody(harness: GcpCloudHarness) -> None:
    need = Requirement(by_shape={"z9-none": ShapeNeed(num_nodes=1, work_s=1.0)})
    assert harness.cloud.offers(need) == []
    assert harness.cloud.offers(Requirement(by_shape={})) == []
    assert harness.cloud.offers(replace(need, by_shape={SHAPE: ShapeNeed(num_nodes=1, work_s=1.0)}))
