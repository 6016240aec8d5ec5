"""What EC2 says of its instance types (``DescribeInstanceTypes``), as far as renting needs it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCard:
    """A network card that takes an EFA interface."""

    index: int
    takes_efa_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One instance type. ``efa_cards`` has a card for each EFA interface that it takes, one to a card."""

    name: str
    num_vcpus: int
    num_accelerators: int
    vendor: str
    efa_cards: tuple[NetworkCard, ...] = ()
    can_cluster: bool = False


def read_shape(row: Mapping[str, Any]) -> Shape:
    """Return one of ``InstanceTypes``."""
    num_accelerators, vendor = _accelerators(row)
    strategies = row.get("PlacementGroupInfo", {}).get("SupportedStrategies", ())
    return Shape(
        name=row["InstanceType"],
        num_vcpus=row["VCpuInfo"]["DefaultVCpus"],
        num_accelerators=num_accelerators,
        vendor=vendor,
        efa_cards=_efa_cards(row.get("NetworkInfo", {})),
        can_cluster="cluster" in strategies,
    )


def _accelerators(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return how many and whose; a machine without any counts as its processor's, with one slot."""
    groups = (
        row.get("GpuInfo", {}).get("Gpus", ()),
        row.get("NeuronInfo", {}).get("NeuronDevices", ()),
        row.get("InferenceAcceleratorInfo", {}).get("Accelerators", ()),
    )
    for devices in groups:
        if devices:
            # Only GPUs have a maker in this answer: Neuron devices are AWS's own.
            return sum(each["Count"] for each in devices), str(devices[0].get("Manufacturer", "AWS")).lower()
    return 1, str(row.get("ProcessorInfo", {}).get("Manufacturer", "")).lower()


def _efa_cards(network: Mapping[str, Any]) -> tuple[NetworkCard, ...]:
    if not network.get("EfaSupported"):
        return ()
    cards = sorted(network.get("NetworkCards", ()), key=lambda card: int(card["NetworkCardIndex"]))
    limit = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1)
    return tuple(
        NetworkCard(index=card["NetworkCardIndex"], takes_efa_only="efa-only" in card.get("InterfaceTypes", ()))
        for card in cards[:limit]
    ) or (NetworkCard(index=0),)
