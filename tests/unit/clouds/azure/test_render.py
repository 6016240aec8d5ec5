from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from azure.mgmt.compute import models
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.clouds.azure import render
from airflow_llmsched.clouds.azure.render import AzureSettings
from airflow_llmsched.clouds.azure.tags import LeaseTags, from_tags
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError
from tests.support.azure_bodies import BodyError, check

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
SUBNET = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/ranks"
GROUP = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/capacityReservationGroups/block"
SETTINGS = AzureSettings(
    subscription_id="00000000-0000-0000-0000-000000000001",
    resource_group="llmsched",
    subnets={"eastus": SUBNET},
    image={"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204", "version": "latest"},
    ssh_public_key="ssh-ed25519 AAAA someone",
)
POOL = Pool(
    cloud="azure", region="eastus", zone="", shape="Standard_ND96isr_H100_v5", capacity_type=CapacityType.ON_DEMAND
)
LEASE = LeaseTags(
    key=LeaseKey(run=RUN, generation=1, rental=1),
    pool=POOL,
    num_nodes=4,
    expires_at_s=1_780_000_000.0,
    origin=RunOrigin(deployment_id="d" * 32, run=RUN, dag_id="pretrain", run_id="manual__1"),
)


def of_capacity(capacity_type: CapacityType, *, zone: str = "") -> LeaseTags:
    return replace(LEASE, pool=replace(POOL, capacity_type=capacity_type, zone=zone))


def machine(settings: AzureSettings = SETTINGS, lease: LeaseTags = LEASE) -> dict[str, Any]:
    return render.scale_set(settings, lease)["properties"]["virtualMachineProfile"]


def test_a_lease_is_one_placement_group_of_as_many_machines_as_asked_for() -> None:
    body = render.scale_set(SETTINGS, LEASE)
    assert body["sku"] == {"name": "Standard_ND96isr_H100_v5", "tier": "Standard", "capacity": 4}
    properties = {name: value for name, value in body["properties"].items() if name != "virtualMachineProfile"}
    assert properties == {
        "orchestrationMode": "Uniform",
        "overprovision": False,
        "singlePlacementGroup": True,
        "platformFaultDomainCount": 1,
        "upgradePolicy": {"mode": "Manual"},
    }
    assert "zones" not in body


def test_what_creates_the_machines_says_whose_they_are() -> None:
    assert from_tags(render.scale_set(SETTINGS, LEASE)["tags"]) == LEASE
    later = replace(LEASE, expires_at_s=LEASE.expires_at_s + 3600.0)
    assert from_tags(render.tags_patch(later)["tags"]) == later


def test_a_zone_is_named_as_azure_names_it() -> None:
    assert render.scale_set(SETTINGS, of_capacity(CapacityType.ON_DEMAND, zone="eastus-2"))["zones"] == ["2"]
    with pytest.raises(SpecError, match="eastus-1"):
        render.scale_set(SETTINGS, of_capacity(CapacityType.ON_DEMAND, zone="westus-2"))
    assert render.zone_name("eastus", "") == ""
    assert render.native_zone("eastus", render.zone_name("eastus", "3")) == "3"


def test_spot_machines_vanish_when_they_are_evicted_and_cost_at_most_what_is_said() -> None:
    spot = machine(lease=of_capacity(CapacityType.SPOT))
    assert (spot["priority"], spot["evictionPolicy"]) == ("Spot", "Delete")
    assert spot["billingProfile"] == {"maxPrice": -1}
    capped = machine(replace(SETTINGS, max_spot_usd_per_hour=31.5), of_capacity(CapacityType.SPOT))
    assert capped["billingProfile"] == {"maxPrice": 31.5}
    assert not {"evictionPolicy", "billingProfile"} & set(machine())


def test_reserved_machines_come_from_the_regions_reservation_group() -> None:
    reserved = machine(replace(SETTINGS, reservation_groups={"eastus": GROUP}), of_capacity(CapacityType.RESERVED))
    assert reserved["capacityReservation"] == {"capacityReservationGroup": {"id": GROUP}}
    with pytest.raises(SpecError, match="no capacity reservation group"):
        machine(lease=of_capacity(CapacityType.RESERVED))


def test_two_leases_in_one_network_name_their_hosts_apart() -> None:
    prefixes = {render.host_prefix(replace(LEASE.key, rental=rental)) for rental in range(1, 100)}
    assert len(prefixes) == 99
    assert all(len(prefix) <= 15 and prefix.isalnum() and prefix.islower() for prefix in prefixes)


def test_user_data_travels_encoded() -> None:
    with_data = machine(replace(SETTINGS, user_data="#cloud-config\n# ä\n"))
    assert base64.b64decode(with_data["userData"]).decode() == "#cloud-config\n# ä\n"


@given(
    capacity_type=st.sampled_from(CapacityType),
    zone=st.sampled_from(["", "eastus-1"]),
    num_nodes=st.integers(1, 100),
    disk_gb=st.sampled_from([None, 256]),
    public=st.booleans(),
)
def test_azures_own_models_take_every_body(*, capacity_type, zone, num_nodes, disk_gb, public) -> None:
    settings = replace(
        SETTINGS,
        os_disk_gb=disk_gb,
        public_addresses=public,
        identity="/subscriptions/s/resourceGroups/g/providers/x/userAssignedIdentities/i" if public else None,
        image={"id": "/subscriptions/s/images/i"} if disk_gb else SETTINGS.image,
        reservation_groups={"eastus": GROUP},
        user_data="#!/bin/sh\n",
    )
    lease = replace(of_capacity(capacity_type, zone=zone), num_nodes=num_nodes)
    check(models.VirtualMachineScaleSet, render.scale_set(settings, lease))
    check(models.VirtualMachineScaleSetUpdate, render.tags_patch(lease), for_update=True)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda body: body.update(colour="red"), "no such field"),
        (lambda body: body.pop("location"), "needs location"),
        (lambda body: body["sku"].update(capacity="4"), "needs a int"),
        (lambda body: body["properties"].update(provisioningState="Succeeded"), "read-only"),
        (lambda body: body["properties"]["virtualMachineProfile"].update(priority="Cheap"), "is no VirtualMachinePri"),
    ],
)
def test_the_check_itself_finds_what_azure_would_refuse(spoil, complaint) -> None:
    body = render.scale_set(SETTINGS, LEASE)
    spoil(body)
    with pytest.raises(BodyError, match=complaint):
        check(models.VirtualMachineScaleSet, body)


def test_a_lease_fits_one_placement_group_or_is_refused() -> None:
    for num_nodes in (0, 101):
        with pytest.raises(SpecError, match="1 to 100"):
            render.scale_set(SETTINGS, replace(LEASE, num_nodes=num_nodes))
    with pytest.raises(SpecError, match="only in eastus"):
        render.scale_set(SETTINGS, replace(LEASE, pool=replace(POOL, region="westus")))


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscription_id": "a/b"},
        {"resource_group": "../other"},
        {"resource_group": "dot."},
        {"subnets": {}},
        {"image": {"publisher": "x"}},
        {"admin_username": "root; reboot"},
        {"ssh_public_key": "-----BEGIN OPENSSH PRIVATE KEY-----"},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name_before_any_call(wrong) -> None:
    with pytest.raises(SpecError) as caught:
        replace(SETTINGS, **wrong)
    assert caught.value.path in wrong


def test_a_private_key_that_was_given_by_mistake_is_not_shown() -> None:
    with pytest.raises(SpecError) as caught:
        replace(SETTINGS, ssh_public_key="-----BEGIN OPENSSH PRIVATE KEY-----")
    assert "PRIVATE" not in str(caught.value)
