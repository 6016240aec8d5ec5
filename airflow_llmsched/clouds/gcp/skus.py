"""Google's price list as price rows. Pure.

The Cloud Billing Catalog has no prices of machine types: it has one for a core, one for a GiB of memory and one for an
accelerator of a series, each for some regions, told apart by words in a description. What no words are known for has no
price here. Words as of 2026-11, from the list itself; SkyPilot's reader of the same list served as a check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.clouds.gcp import tpu_words
from airflow_llmsched.clouds.gcp.record import CLOUD
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.prices import PricePart, PriceRow, PriceUnit
from airflow_llmsched.domain.workload import CapacityType

Json = Mapping[str, Any]

SOURCE = "Cloud Billing Catalog"
MIB_PER_GIB = 1024

SERIES = {
    "a2": "A2 Instance",
    "a3": "A3 Instance",
    "a4": "A4 Instance",
    "c2": "Compute optimized",
    "c2d": "C2D AMD Instance",
    "c3": "C3 Instance",
    "e2": "E2 Instance",
    "g2": "G2 Instance",
    "n1": "N1 Predefined Instance",
    "n2": "N2 Instance",
    "n2d": "N2D AMD Instance",
}
"""How descriptions name a series of machine types."""

ACCELERATOR = {
    "nvidia-tesla-t4": ("T4 GPU",),
    "nvidia-tesla-v100": ("V100 GPU",),
    "nvidia-tesla-p100": ("P100 GPU",),
    "nvidia-tesla-a100": ("A100 GPU",),
    "nvidia-a100-80gb": ("A100 80GB GPU",),
    "nvidia-l4": ("L4 GPU",),
    "nvidia-h100-80gb": ("H100 80GB GPU",),
    "nvidia-h100-mega-80gb": ("H100 80GB Mega GPU", "H100 Mega 80GB GPU", "H100 80GB Plus GPU"),
    "nvidia-h200-141gb": ("H200 141GB GPU",),
    "nvidia-b200": ("B200 (1 gpu slice)",),
}
"""How descriptions name an accelerator; one of them in different words by region."""

CHIP = {"v5litepod": "TpuV5e", "v5p": "TpuV5p", "v6e": "TpuV6e"}
"""How descriptions name a generation of TPUs, priced by the chip. Older ones are priced in other units."""

KINDS = {"OnDemand": CapacityType.ON_DEMAND, "Preemptible": CapacityType.SPOT}
"""``usageType``: the rest are commitments."""

ELSEWHERE = ("custom", "premium", "reserved", "sole tenancy", "commitment", "dws", "calendar", "upgrade")
"""Words of prices that are for other ways of renting."""

PER_HOUR = {"CPU": "h", "RAM": "GiBy.h", "GPU": "h", "TPU": "h"}
"""The unit that each kind of price must be in: any other is not understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What one unit of something costs for an hour in some regions."""

    group: str
    description: str
    kind: CapacityType
    regions: frozenset[str]
    amount_per_hour: float
    currency: str


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates that may be of use. Build by :meth:`of`, once for a list of tens of thousands."""

    all: tuple[Rate, ...] = field(default=())

    @classmethod
    def of(cls, skus: Iterable[Json], *, regions: Collection[str]) -> Rates:
        """Keep what is understood and is for one of ``regions``."""
        found = (rate for rate in map(_rate, skus) if rate is not None)
        return cls(tuple(rate for rate in found if not rate.regions.isdisjoint(regions)))

    def dearest(self, group: str, words: Sequence[str], kind: CapacityType, region: str) -> Rate | None:
        """Return the rate that is named by one of ``words``; of several the dearest; None: there is none."""
        fitting = [
            rate
            for rate in self.all
            if rate.group == group
            and rate.kind is kind
            and region in rate.regions
            and any(word in rate.description for word in words)
        ]
        return max(fitting, key=lambda rate: rate.amount_per_hour, default=None)


def machine_rows(machine_type: Json, rates: Rates, *, region: str, now_s: float) -> Iterator[PriceRow]:
    """Yield the prices of a machine type's host and of its accelerators in a region, as far as there are some."""
    name = str(machine_type["name"])
    words = SERIES.get(name.partition("-")[0])
    accelerators = machine_type.get("accelerators", [])
    for kind in KINDS.values():
        pool = Pool(cloud=CLOUD, region=region, zone="", shape=name, capacity_type=kind)
        core, memory = (rates.dearest(group, [f"{words} "], kind, region) for group in ("CPU", "RAM"))
        if words and core and memory and core.currency == memory.currency:
            yield PriceRow(
                pool=pool,
                amount_per_hour=core.amount_per_hour * machine_type["guestCpus"]
                + memory.amount_per_hour * machine_type["memoryMb"] / MIB_PER_GIB,
                currency=core.currency,
                priced_at_s=now_s,
                source=SOURCE,
                part=PricePart.HOST if accelerators else PricePart.WHOLE,
            )
        for each in accelerators:
            rate = rates.dearest("GPU", ACCELERATOR.get(each["guestAcceleratorType"], ()), kind, region)
            if rate is not None:
                yield PriceRow(
                    pool=pool,
                    amount_per_hour=rate.amount_per_hour,
                    currency=rate.currency,
                    priced_at_s=now_s,
                    source=SOURCE,
                    unit=PriceUnit.ACCELERATOR,
                    part=PricePart.ACCELERATORS,
                    num_accelerators=each["guestAcceleratorCount"],
                )


def slice_rows(shape: str, rates: Rates, *, region: str, now_s: float) -> Iterator[PriceRow]:
    """Yield the prices of a slice of TPUs in a region, as far as there are some."""
    word = CHIP.get(shape.partition("-")[0])
    for kind in KINDS.values():
        rate = rates.dearest("TPU", [word], kind, region) if word else None
        if rate is not None:
            yield PriceRow(
                pool=Pool(cloud=CLOUD, region=region, zone="", shape=shape, capacity_type=kind),
                amount_per_hour=rate.amount_per_hour * tpu_words.num_chips(shape),
                currency=rate.currency,
                priced_at_s=now_s,
                source=SOURCE,
            )


def _rate(sku: Json) -> Rate | None:
    """Return what a line says; None: it is for something else, or not understood."""
    category, description = sku.get("category", {}), str(sku.get("description", ""))
    kind = KINDS.get(category.get("usageType", ""))
    group = _group(category, description)
    if kind is None or group is None or any(word in description.lower() for word in ELSEWHERE):
        return None
    if group == "TPU" and "preemptible" in description.lower():
        kind = CapacityType.SPOT  # the list calls all TPUs OnDemand
    priced = (sku.get("pricingInfo") or [{}])[-1].get("pricingExpression", {})
    if priced.get("usageUnit") != PER_HOUR[group]:
        return None
    tiers = [each.get("unitPrice", {}) for each in priced.get("tieredRates", [])]
    dearest = max(tiers, key=_amount, default=None)
    if dearest is None or _amount(dearest) <= 0:
        return None
    return Rate(
        group=group,
        description=description,
        kind=kind,
        regions=frozenset(sku.get("serviceRegions", [])),
        amount_per_hour=_amount(dearest),
        currency=str(dearest.get("currencyCode", "")),
    )


def _group(category: Json, description: str) -> str | None:
    if any(word in description for word in CHIP.values()):
        return "TPU"
    group = category.get("resourceGroup", "")
    if group == "N1Standard":  # both halves of a host
        return "CPU" if " Core " in description else "RAM" if " Ram " in description else None
    return group if group in PER_HOUR else None


def _amount(price: Json) -> float:
    return int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
