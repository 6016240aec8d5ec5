"""Request bodies, as Azure's REST interface takes them: printable, and pure.

A lease is a scale set in Uniform orchestration, because only that has InfiniBand between its machines, and only in a
single placement group (Azure's comparison of orchestration modes, row "InfiniBand networking"). Its network interfaces
and public addresses are parts of it and cannot outlive it; its disks go with their machines, for which reason Azure
takes no ``deleteOption`` there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.clouds.azure.tags import LeaseTags, to_tags
from airflow_llmsched.domain.identity import LeaseKey
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError

MAX_NODES = 100
"""Machines of one placement group."""

_PLAIN = re.compile(r"[A-Za-z0-9_.()-]{1,90}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """What all leases of one Azure share. ``subnets`` and ``reservation_groups`` are resource ids by region.

    ``image`` is an image reference: ``{"id": ...}``, or publisher, offer, sku and version. ``user_data`` is what
    machines find in their metadata, and no place for secrets. Without ``max_spot_usd_per_hour`` the
    on-demand price is the limit.
    """

    subscription_id: str
    resource_group: str
    subnets: Mapping[str, str]
    image: Mapping[str, str]
    ssh_public_key: str
    admin_username: str = "llmsched"
    os_disk_gb: int | None = None
    os_disk_type: str = "Premium_LRS"
    public_addresses: bool = False
    accelerated_networking: bool = True
    identity: str | None = None
    user_data: str = ""
    max_spot_usd_per_hour: float | None = None
    reservation_groups: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what Azure would, and what would change the path of a request. Raises ``SpecError``."""
        for path, value in (("subscription_id", self.subscription_id), ("resource_group", self.resource_group)):
            if not _PLAIN.fullmatch(value) or value.endswith("."):
                raise SpecError(path=path, value=value, hint="is not the name of an Azure subscription or group")
        if not self.subnets:
            raise SpecError(path="subnets", hint="needs the id of a subnet for each region to rent in")
        if set(self.image) not in ({"id"}, {"publisher", "offer", "sku", "version"}):
            hint = "needs an id, or publisher, offer, sku and version"
            raise SpecError(path="image", value=dict(self.image), hint=hint)
        if not _USER.fullmatch(self.admin_username):
            raise SpecError(path="admin_username", value=self.admin_username, hint="is not a Linux user's name")
        if not self.ssh_public_key.startswith(("ssh-", "ecdsa-")):
            raise SpecError(path="ssh_public_key", hint="must be a public key as in authorized_keys")

    @property
    def group_path(self) -> str:
        """Path of the resource group."""
        return f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"


def scale_set(settings: AzureSettings, lease: LeaseTags) -> dict[str, Any]:
    """Return the scale set that is ``lease``. Raises ``SpecError`` for what no scale set can be."""
    pool = lease.pool
    if pool.region not in settings.subnets:
        known = ", ".join(sorted(settings.subnets))
        raise SpecError(path="subnets", value=pool.region, hint=f"has no subnet in this region, only in {known}")
    if not 1 <= lease.num_nodes <= MAX_NODES:
        raise SpecError(path="num_nodes", value=lease.num_nodes, hint=f"one placement group has 1 to {MAX_NODES} nodes")
    body: dict[str, Any] = {
        "location": pool.region,
        "tags": to_tags(lease),
        "sku": {"name": pool.shape, "tier": "Standard", "capacity": lease.num_nodes},
        "properties": {
            "orchestrationMode": "Uniform",
            "overprovision": False,
            "singlePlacementGroup": True,
            "platformFaultDomainCount": 1,
            "upgradePolicy": {"mode": "Manual"},
            "virtualMachineProfile": _machine(settings, lease),
        },
    }
    if pool.zone:
        body["zones"] = [native_zone(pool.region, pool.zone)]
    if settings.identity is not None:
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {settings.identity: {}}}
    return body


def tags_patch(lease: LeaseTags) -> dict[str, Any]:
    """Return the change of a scale set whose tags are to say ``lease``."""
    return {"tags": to_tags(lease)}


def zone_name(region: str, native: str) -> str:
    """Return our name of a zone that Azure calls 1, 2 or 3; empty for no zone."""
    return f"{region}-{native}" if native else ""


def native_zone(region: str, zone: str) -> str:
    """Return what Azure calls a zone of ours. Raises ``SpecError``."""
    if not zone.startswith(f"{region}-"):
        raise SpecError(path="zone", value=zone, hint=f"must be of region {region}, as {region}-1 is")
    return zone.removeprefix(f"{region}-")


def host_prefix(key: LeaseKey) -> str:
    """Return how the names of a lease's hosts begin: at most 15 characters, of no other lease in the same network."""
    digest = hashlib.sha256(key.name.encode()).digest()
    return "ls" + base64.b32encode(digest)[:12].decode().lower()


def _machine(settings: AzureSettings, lease: LeaseTags) -> dict[str, Any]:
    profile: dict[str, Any] = {
        "storageProfile": {"imageReference": dict(settings.image), "osDisk": _disk(settings)},
        "osProfile": _system(settings, lease.key),
        "networkProfile": {"networkInterfaceConfigurations": [_interface(settings, lease.pool.region)]},
        **_capacity(settings, lease),
    }
    if settings.user_data:
        profile["userData"] = base64.b64encode(settings.user_data.encode()).decode()
    return profile


def _capacity(settings: AzureSettings, lease: LeaseTags) -> dict[str, Any]:
    match lease.pool.capacity_type:
        case CapacityType.SPOT:
            limit_usd = settings.max_spot_usd_per_hour
            return {
                "priority": "Spot",
                "evictionPolicy": "Delete",  # a machine that is only deallocated would leave its disk on the bill
                "billingProfile": {"maxPrice": -1 if limit_usd is None else limit_usd},
            }
        case CapacityType.RESERVED:
            group = settings.reservation_groups.get(lease.pool.region)
            if group is None:
                hint = "has no capacity reservation group for this region"
                raise SpecError(path="reservation_groups", value=lease.pool.region, hint=hint)
            return {"priority": "Regular", "capacityReservation": {"capacityReservationGroup": {"id": group}}}
        case CapacityType.ON_DEMAND:
            return {"priority": "Regular"}


def _disk(settings: AzureSettings) -> dict[str, Any]:
    disk: dict[str, Any] = {
        "createOption": "FromImage",
        "caching": "ReadWrite",
        "managedDisk": {"storageAccountType": settings.os_disk_type},
    }
    if settings.os_disk_gb is not None:
        disk["diskSizeGB"] = settings.os_disk_gb
    return disk


def _system(settings: AzureSettings, key: LeaseKey) -> dict[str, Any]:
    path = f"/home/{settings.admin_username}/.ssh/authorized_keys"
    return {
        "computerNamePrefix": host_prefix(key),
        "adminUsername": settings.admin_username,
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {"publicKeys": [{"path": path, "keyData": settings.ssh_public_key}]},
        },
    }


def _interface(settings: AzureSettings, region: str) -> dict[str, Any]:
    address: dict[str, Any] = {"primary": True, "subnet": {"id": settings.subnets[region]}}
    if settings.public_addresses:
        address["publicIPAddressConfiguration"] = {"name": "public", "properties": {"idleTimeoutInMinutes": 15}}
    return {
        "name": "nic",
        "properties": {
            "primary": True,
            "enableAcceleratedNetworking": settings.accelerated_networking,
            "ipConfigurations": [{"name": "ip", "properties": address}],
        },
    }
