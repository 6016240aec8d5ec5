"""What is sent is held against botocore's own model of EC2: names, types and required fields."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_llmsched.clouds.aws import render, tags
from airflow_llmsched.clouds.aws.options import read_options
from airflow_llmsched.clouds.aws.render import Rental, Reservation
from airflow_llmsched.clouds.aws.shapes import read_shape
from airflow_llmsched.clouds.aws.tags import LeaseTags
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.testing.cloud_contract import lease_key, origin
from tests.support.aws_cloud import aws_offer

EC2 = botocore.session.get_session().get_service_model("ec2")


def rental(
    *,
    shape: str = "p4d.24xlarge",
    capacity_type: CapacityType = CapacityType.ON_DEMAND,
    num_nodes: int = 2,
    reservation: Reservation | None = None,
    **options: Any,
) -> Rental:
    pool = aws_offer(shape=shape, capacity_type=capacity_type).pool
    said = LeaseTags(
        key=lease_key(), origin=origin(), pool=pool, num_nodes=num_nodes, created_at_s=1000.0, expires_at_s=4600.0
    )
    return Rental(
        name=render.resource_name(lease_key().name),
        pool=pool,
        num_nodes=num_nodes,
        shape=read_shape({**INSTANCE_TYPES[shape], "InstanceType": shape}),
        subnet_id="subnet-1",
        tags=tags.write(said),
        options=read_options({"regions": ["us-east-1"], "image": "ami-1", **options}),
        reservation=reservation,
    )


def data(made: Rental) -> dict[str, Any]:
    return render.launch_template(made)["LaunchTemplateData"]


RENTALS = {
    "on-demand": rental(),
    "spot": rental(capacity_type=CapacityType.SPOT, spot_max_usd_per_hour={"p4d.24xlarge": 12.5}),
    "block": rental(capacity_type=CapacityType.RESERVED, reservation=Reservation(id="cr-1", is_block=True)),
    "reserved": rental(capacity_type=CapacityType.RESERVED, reservation=Reservation(id="cr-2")),
    "p5": rental(shape="p5.48xlarge"),
    "full": rental(
        num_nodes=1,
        instance_profile_arn="arn:aws:iam::1:instance-profile/node",
        key_names={"us-east-1": "ops"},
        security_group_ids={"us-east-1": ["sg-1"]},
        root_device="/dev/xvda",
        root_volume_size_gib=500,
        public_addresses=True,
        user_data="#!/bin/sh\ntrue\n",
    ),
}


@pytest.mark.parametrize("made", RENTALS.values(), ids=RENTALS)
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("CreatePlacementGroup", render.placement_group),
        ("CreateLaunchTemplate", render.launch_template),
        ("CreateFleet", render.fleet),
    ],
)
def test_every_body_is_what_ec2_s_model_takes(made: Rental, operation: str, body: Any) -> None:
    report = ParamValidator().validate(body(made), EC2.operation_model(operation).input_shape)
    assert report.generate_report() == ""


@pytest.mark.parametrize("made", RENTALS.values(), ids=RENTALS)
def test_a_fleet_is_instant_all_or_none_and_known_by_the_key_s_token(made: Rental) -> None:
    body = render.fleet(made)
    assert (body["Type"], body["ClientToken"]) == ("instant", made.name)
    assert len(made.name) <= 64
    target = body["TargetCapacitySpecification"]
    assert target["TotalTargetCapacity"] == made.num_nodes
    whole = body.get("SpotOptions") or body.get("OnDemandOptions")
    if target["DefaultTargetCapacityType"] == "capacity-block":
        assert whole is None  # EC2 takes no options of another market beside it
    else:
        assert whole["MinTargetCapacity"] == made.num_nodes
        assert whole["SingleInstanceType"]
        assert whole["SingleAvailabilityZone"]


def test_a_fleet_asked_for_again_at_another_time_is_the_same_request() -> None:
    later = replace(rental(), tags={**rental().tags, tags.CREATED: "2000", tags.EXPIRES: "9000"})
    assert render.fleet(later) == render.fleet(rental())


def test_everything_that_comes_with_a_node_says_whose_it_is() -> None:
    assert {each["ResourceType"] for each in data(RENTALS["on-demand"])["TagSpecifications"]} == {
        "instance",
        "volume",
        "network-interface",
    }
    assert {each["ResourceType"] for each in data(RENTALS["spot"])["TagSpecifications"]} == {
        "instance",
        "volume",
        "network-interface",
        "spot-instances-request",
    }
    for specification in data(RENTALS["spot"])["TagSpecifications"]:
        assert tags.unpaired(specification["Tags"]) == RENTALS["spot"].tags
    (named,) = render.launch_template(rental())["TagSpecifications"]
    assert tags.unpaired(named["Tags"]) == rental().tags


def test_spot_is_asked_for_once_where_it_is_deepest_and_below_the_cap() -> None:
    body = render.fleet(RENTALS["spot"])
    assert body["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot"
    assert body["SpotOptions"]["AllocationStrategy"] == "capacity-optimized"
    assert body["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"
    assert body["LaunchTemplateConfigs"][0]["Overrides"] == [{"InstanceType": "p4d.24xlarge", "MaxPrice": "12.5000"}]
    assert "MaxPrice" not in str(render.fleet(rental(capacity_type=CapacityType.SPOT)))


def test_a_block_and_a_reservation_are_aimed_at_by_id_and_lie_where_they_lie() -> None:
    for name, target in (("block", "capacity-block"), ("reserved", "on-demand")):
        made = RENTALS[name]
        assert render.fleet(made)["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == target
        wanted = data(made)["CapacityReservationSpecification"]["CapacityReservationTarget"]
        assert wanted == {"CapacityReservationId": made.reservation.id}
        assert "Placement" not in data(made)
    assert data(RENTALS["block"])["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert "InstanceMarketOptions" not in data(RENTALS["reserved"])


def test_several_nodes_share_a_cluster_group_where_their_type_has_one() -> None:
    assert data(rental())["Placement"] == {"GroupName": rental().name}
    assert render.placement_group(rental())["Strategy"] == "cluster"
    assert "Placement" not in data(rental(num_nodes=1))
    assert "Placement" not in data(rental(placement_groups=False))


def test_each_network_card_gets_an_efa_interface_of_which_the_first_carries_ip() -> None:
    interfaces = data(RENTALS["p5"])["NetworkInterfaces"]
    assert [each["NetworkCardIndex"] for each in interfaces] == list(range(32))
    assert [each["InterfaceType"] for each in interfaces] == ["efa"] + ["efa-only"] * 31
    assert [each["DeviceIndex"] for each in interfaces] == [0] + [1] * 31
    assert {each["SubnetId"] for each in interfaces} == {"subnet-1"}
    assert all(each["DeleteOnTermination"] for each in interfaces)


def test_without_efa_there_is_one_plain_interface_which_may_have_a_public_address() -> None:
    assert data(rental(efa=False))["NetworkInterfaces"] == [
        {"DeviceIndex": 0, "SubnetId": "subnet-1", "DeleteOnTermination": True}
    ]
    assert data(RENTALS["full"])["NetworkInterfaces"] == [
        {
            "DeviceIndex": 0,
            "SubnetId": "subnet-1",
            "DeleteOnTermination": True,
            "Groups": ["sg-1"],
            "AssociatePublicIpAddress": True,
        }
    ]


def test_an_instance_that_powers_off_is_gone_and_may_read_its_own_tags() -> None:
    made = data(rental())
    assert made["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert made["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    assert made["MetadataOptions"]["HttpTokens"] == "required"
    assert "llmsched-lease 4600" in base64.b64decode(made["UserData"]).decode()
    assert "UserData" not in data(rental(power_off_at_expiry=False))


def test_a_disk_goes_with_its_instance() -> None:
    (disk,) = data(RENTALS["full"])["BlockDeviceMappings"]
    assert disk["Ebs"]["DeleteOnTermination"] is True
    assert disk["Ebs"]["VolumeSize"] == 500
    assert data(RENTALS["full"])["KeyName"] == "ops"
    assert data(RENTALS["full"])["IamInstanceProfile"] == {"Arn": "arn:aws:iam::1:instance-profile/node"}
