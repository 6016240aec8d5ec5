from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp.cloud import GcpCloud
from airflow_llmsched.clouds.gcp.render import Machine
from airflow_llmsched.clouds.gcp.tpu_words import Slice
from airflow_llmsched.domain.capacity import Pool, Requirement, ShapeNeed
from airflow_llmsched.errors import CapacityError, SpecError
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


PAGE = (ROOT / "docs" / "howto" / "rent-on-gcp.md").read_text()
VERB = {"insert": "create", "bulkInsert": "create", "aggregatedList": "list", "patch": "update", "cancel": "update"}
RESOURCE = {
    "regionInstanceTemplates": "instanceTemplates",
    "instanceGroupManagerResizeRequests": "instanceGroupManagers",
    "queuedResources": "queuedresources",
    "acceleratorTypes": "acceleratortypes",
}
IMPLIED = {
    "compute.instanceGroupManagers.create": {"compute.instanceGroups.create", "compute.instanceGroupManagers.use"},
    "compute.instanceGroupManagers.delete": {"compute.instanceGroups.delete"},
    "compute.instanceTemplates.create": {"compute.instanceTemplates.useReadOnly", "compute.instanceTemplates.get"},
    "tpu.queuedresources.create": {"tpu.nodes.create"},
    "compute.instances.create": {
        "compute.disks.create",
        "compute.disks.setLabels",
        "compute.images.useReadOnly",
        "compute.instances.setLabels",
        "compute.instances.setMetadata",
        "compute.instances.setServiceAccount",
        "compute.instances.setTags",
        "compute.networks.use",
        "compute.resourcePolicies.use",
        "compute.subnetworks.use",
        "compute.subnetworks.useExternalIp",
    },
}
"""What Google asks for beside the permission that a call is named after. Some of it we never use in another way."""


def calls_of(harness: GcpCloudHarness) -> set[str]:
    """Return what is called by all that is done with leases, also where disks stay and requests are gone."""
    lease = harness.cloud.acquire(
        harness.offer(), key=lease_key(), origin=origin(), num_nodes=2, until_s=harness.now_s() + LEASE_S
    )
    harness.wait(lambda: bool(harness.cloud.leases([lease.id])[lease.id].nodes))
    harness.advance(120.0)
    for row in harness.world.tpus.nodes.values():
        row["_listed_s"] = harness.now_s() + 60.0
    harness.cloud.leases([lease.id])
    harness.advance(60.0)
    harness.cloud.renew(lease, until_s=harness.now_s() + 9 * LEASE_S)
    harness.preempt(harness.cloud.leases([lease.id])[lease.id].nodes[0].id)
    harness.cloud.find_all()
    harness.cloud.offers(Requirement(by_shape={lease.pool.shape: ShapeNeed(num_nodes=1, work_s=1.0)}))
    harness.leave_parts()
    harness.cloud.release(lease.id)
    second = harness.cloud.acquire(
        harness.spot_offer(), key=lease_key(2), origin=origin(), num_nodes=1, until_s=harness.now_s() + LEASE_S
    )
    harness.cloud.release(second.id)
    harness.run_short(harness.offer(), num_nodes=0)
    with contextlib.suppress(CapacityError):  # a queue waits instead, and is told not to
        harness.cloud.acquire(
            harness.offer(), key=lease_key(3), origin=origin(), num_nodes=1, until_s=harness.now_s() + LEASE_S
        )
    harness.cloud.release(harness.cloud.lease_id(harness.offer().pool, lease_key(3)))
    return set(harness.server.calls)


def test_the_role_in_the_docs_allows_exactly_what_is_called() -> None:
    called: set[str] = set()
    for made in (GcpCloudHarness(), GcpCloudHarness(queued_shapes=[SHAPE]), TpuHarness()):
        try:
            called |= calls_of(made)
        finally:
            made.close()
    needed: set[str] = set()
    for each in called:
        resource, verb = each.split(".")
        is_tpu = resource in ("queuedResources", "nodes", "acceleratorTypes", "operations")
        service = "tpu" if is_tpu else "compute"
        needed.add(f"{service}.{RESOURCE.get(resource, resource)}.{VERB.get(verb, verb)}")
    for each in tuple(needed):
        needed |= IMPLIED.get(each, set())
    allowed = set(re.findall(r"- (compute\.\w+\.\w+)", PAGE))
    for resource, verbs in re.findall(r"`(tpu\.\w+)\.((?:\w+`, `\.)*\w+)`", PAGE):
        allowed |= {f"{resource}.{verb}" for verb in re.findall(r"\w+", verbs)}
    assert allowed == needed


def test_every_option_is_in_the_docs() -> None:
    options = [*inspect.signature(GcpCloud).parameters, *(each.name for each in dataclasses.fields(Machine))]
    options += [each.name for each in dataclasses.fields(Slice) if each.name != "service_account"]
    missing = [each for each in options if f"`{each}`" not in PAGE]
    assert missing == ["credentials", "clock"], "an object each: the text says what they are"
