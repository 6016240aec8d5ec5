"""The bodies of the calls that create something. Pure and printable; nothing is random in them, so that they repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.clouds.aws.options import AwsOptions
from airflow_llmsched.clouds.aws.shapes import Shape
from airflow_llmsched.clouds.aws.tags import EXPIRES, LEASE, RUN, on_each
from airflow_llmsched.clouds.aws.user_data import user_data
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.workload import CapacityType

TAGGED_BY_TEMPLATE = ("instance", "volume", "network-interface")
"""What an instance brings with it: each says by itself whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A capacity reservation or capacity block to launch into."""

    id: str
    is_block: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """All that one rental's calls are made of."""

    name: str
    pool: Pool
    num_nodes: int
    shape: Shape
    subnet_id: str
    tags: Mapping[str, str]
    options: AwsOptions
    reservation: Reservation | None = None

    @property
    def has_group(self) -> bool:
        """Whether the nodes go into a cluster placement group of their own; reservations lie where they lie."""
        return (
            self.options.placement_groups and self.num_nodes > 1 and self.shape.can_cluster and self.reservation is None
        )


def resource_name(key_name: str) -> str:
    """Return the name of the launch template and the placement group of a lease."""
    return f"llmsched-{key_name}"


def placement_group(rental: Rental) -> dict[str, Any]:
    """Return the body of ``CreatePlacementGroup``."""
    return {
        "GroupName": rental.name,
        "Strategy": "cluster",
        "TagSpecifications": on_each(["placement-group"], rental.tags),
    }


def launch_template(rental: Rental) -> dict[str, Any]:
    """Return the body of ``CreateLaunchTemplate``."""
    return {
        "LaunchTemplateName": rental.name,
        "LaunchTemplateData": _template_data(rental),
        "TagSpecifications": on_each(["launch-template"], rental.tags),
    }


def fleet(rental: Rental) -> dict[str, Any]:
    """Return the body of ``CreateFleet``: one instance type in one subnet, all or none, under the key's own token.

    The instances' tags come from the template, and nothing of when it is asked is in here: EC2 refuses a token that
    comes back with another body.
    """
    kind = _target(rental)
    body: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": rental.name,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": rental.name, "Version": "1"},
                "Overrides": [{"InstanceType": rental.pool.shape}],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": rental.num_nodes,
            "DefaultTargetCapacityType": kind,
        },
        "TagSpecifications": on_each(["fleet"], {name: rental.tags[name] for name in (LEASE, RUN)}),
    }
    whole = {"SingleInstanceType": True, "SingleAvailabilityZone": True, "MinTargetCapacity": rental.num_nodes}
    if kind == "spot":
        body["SpotOptions"] = {
            **whole,
            "AllocationStrategy": "capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        }
        cap = rental.options.spot_max_usd_per_hour.get(rental.pool.shape)
        if cap is not None:
            body["LaunchTemplateConfigs"][0]["Overrides"][0]["MaxPrice"] = f"{cap:.4f}"
    elif kind == "on-demand":
        body["OnDemandOptions"] = {**whole, "AllocationStrategy": "lowest-price"}
    return body


def _target(rental: Rental) -> str:
    if rental.pool.capacity_type is CapacityType.SPOT:
        return "spot"
    return "capacity-block" if rental.reservation is not None and rental.reservation.is_block else "on-demand"


def _template_data(rental: Rental) -> dict[str, Any]:
    options, region = rental.options, rental.pool.region
    is_spot = rental.pool.capacity_type is CapacityType.SPOT
    kinds = [*TAGGED_BY_TEMPLATE, *(["spot-instances-request"] if is_spot else [])]
    start_up = user_data(expires_s=rental.tags[EXPIRES], own=options.user_data, has_switch=options.power_off_at_expiry)
    data: dict[str, Any] = {
        "ImageId": options.image_in(region),
        "InstanceType": rental.pool.shape,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "InstanceMetadataTags": "enabled"},
        "NetworkInterfaces": _interfaces(rental),
        "TagSpecifications": on_each(kinds, rental.tags),
    }
    if start_up:
        data["UserData"] = start_up
    if options.instance_profile_arn:
        data["IamInstanceProfile"] = {"Arn": options.instance_profile_arn}
    if region in options.key_names:
        data["KeyName"] = options.key_names[region]
    if options.root_device:
        disk = {"VolumeSize": options.root_volume_size_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
        data["BlockDeviceMappings"] = [{"DeviceName": options.root_device, "Ebs": disk}]
    if rental.has_group:
        data["Placement"] = {"GroupName": rental.name}
    if rental.reservation is not None:
        data["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": rental.reservation.id}
        }
        if rental.reservation.is_block:
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return data


def _interfaces(rental: Rental) -> list[dict[str, Any]]:
    """Return one interface, or with EFA one for each network card: the first carries IP too, the others EFA only.

    All of them go with their instance. EC2 gives public addresses to single interfaces only.
    """
    cards = rental.shape.efa_cards if rental.options.efa and rental.num_nodes > 1 else ()
    groups = list(rental.options.security_group_ids.get(rental.pool.region, ()))
    first: dict[str, Any] = {"DeviceIndex": 0, "SubnetId": rental.subnet_id, "DeleteOnTermination": True}
    if groups:
        first["Groups"] = groups
    if not cards:
        return [{**first, "AssociatePublicIpAddress": True}] if rental.options.public_addresses else [first]
    return [
        {
            **first,
            "DeviceIndex": 0 if index == 0 else 1,
            "NetworkCardIndex": card.index,
            "InterfaceType": "efa" if index == 0 or not card.takes_efa_only else "efa-only",
        }
        for index, card in enumerate(cards)
    ]
