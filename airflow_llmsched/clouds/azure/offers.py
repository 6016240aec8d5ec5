"""Offers from Azure's catalogue of sizes, a subscription's quota and reservations, and the public price list. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_llmsched.clouds.azure.render import zone_name
from airflow_llmsched.clouds.azure.tags import NAME
from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.prices import PriceRow
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.jurisdictions import jurisdiction_of
from airflow_llmsched.planner.market.price_rows import offers_of

Row = Mapping[str, Any]

START_UP_S = 480.0
"""From the order to the first rank: a machine with eight accelerators takes Azure five to ten minutes."""

PRICES_SOURCE = "Azure retail prices"
_HOUR = "1 Hour"
_VENDORS = {"V100": "nvidia", "A100": "nvidia", "H100": "nvidia", "H200": "nvidia", "B200": "nvidia", "MI300": "amd"}
"""Who makes the accelerators of a size, by what its name holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size as one region sells it to us. ``zones`` are Azure's numbers; none where it is not sold by zone."""

    name: str
    region: str
    zones: tuple[str, ...]
    family: str
    num_cores: int
    num_accelerators: int
    is_spot_capable: bool


def sizes(rows: Sequence[Row], *, region: str) -> dict[str, Size]:
    """Return, by name, the sizes that the subscription may use in ``region``: restricted ones are left out."""
    found = (_size(row, region) for row in rows if row.get("resourceType") == "virtualMachines")
    return {size.name: size for size in found if size is not None}


def price_filter(shapes: Sequence[str], *, region: str) -> str:
    """Return the query of the price list for ``shapes`` in ``region``. Names are quoted as OData wants it."""
    wanted = " or ".join(f"armSkuName eq {_quoted(shape)}" for shape in sorted(shapes))
    return (
        f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' "
        f"and armRegionName eq {_quoted(region)} and ({wanted})"
    )


def price_rows(rows: Sequence[Row], *, now_s: float) -> list[PriceRow]:
    """Return the lines that price a whole Linux machine by the hour, today. Others are for other things."""
    return [priced for row in rows if (priced := _price_row(row, now_s)) is not None]


def eviction_query(shapes: Sequence[str], *, region: str) -> str:
    """Return the query of the resource graph for how often spot machines of ``shapes`` are evicted in ``region``."""
    wanted = ", ".join(_literal(shape) for shape in sorted(shapes))
    return (
        "SpotResources | where type =~ 'microsoft.compute/skuspotevictionrate/location' "
        f"| where sku.name in~ ({wanted}) and location =~ {_literal(region)} "
        "| project name = tostring(sku.name), rate = tostring(properties.evictionRate)"
    )


def losses_per_hour(rows: Sequence[Row]) -> dict[str, float]:
    """Return by size, in lower case, how often an hour a spot machine is evicted.

    Azure names a range of the share that is evicted within an hour, by the last 28 days (``5-10`` per cent). The middle
    is taken, and the beginning of a range without an end.
    """
    found = {}
    for row in rows:
        low, dash, high = str(row.get("rate", "")).rstrip("+").partition("-")
        bounds = [float(each) / 100 for each in (low, high if dash else low) if each.isdecimal()]
        if len(bounds) == 2 and bounds[1] < 1:
            found[str(row.get("name", "")).lower()] = -math.log1p(-sum(bounds) / 2)
    return found


def offers(
    shelf: Mapping[str, Size],
    *,
    shapes: Sequence[str],
    usages: Sequence[Row],
    prices: Sequence[PriceRow],
    reservations: Sequence[Row],
    losses: Mapping[str, float],
    now_s: float,
) -> list[Offer]:
    """Return what one region offers of ``shapes``: in each zone where a size is sold by zone, else in the region."""
    priced = {
        (offer.pool.region, offer.pool.shape, offer.pool.capacity_type): offer
        for offer in offers_of(prices, now_s=now_s).offers
    }
    headroom = _headroom(usages)
    found: list[Offer] = []
    for size in (shelf[shape] for shape in sorted(shapes) if shape in shelf):
        for capacity_type in (CapacityType.ON_DEMAND, CapacityType.SPOT):
            if capacity_type is CapacityType.SPOT and not size.is_spot_capable:
                continue
            num_nodes = _nodes_within(headroom, size, capacity_type)
            found += [
                _offer(size, zone, capacity_type, priced, num_nodes=num_nodes, now_s=now_s)
                for zone in size.zones or ("",)
            ]
    for pool_zone, size, num_nodes in _reserved(reservations, shelf, shapes):
        found.append(_offer(size, pool_zone, CapacityType.RESERVED, priced, num_nodes=num_nodes, now_s=now_s))
    return [_with_loss(offer, losses) for offer in found]


def _with_loss(offer: Offer, losses: Mapping[str, float]) -> Offer:
    """Return the offer with how often one machine of it is lost: Azure counts machines, whatever gang they are of."""
    is_spot = offer.pool.capacity_type is CapacityType.SPOT
    return replace(offer, loss_per_hour=losses.get(offer.pool.shape.lower())) if is_spot else offer


def _offer(
    size: Size,
    zone: str,
    capacity_type: CapacityType,
    priced: Mapping[tuple[str, str, CapacityType], Offer],
    *,
    num_nodes: int | None,
    now_s: float,
) -> Offer:
    # A capacity reservation is billed like the machines that it keeps a place for, whether they run or not.
    billed_as = CapacityType.ON_DEMAND if capacity_type is CapacityType.RESERVED else capacity_type
    price = priced.get((size.region, size.name, billed_as))
    offer = Offer(
        pool=Pool(
            cloud=NAME,
            region=size.region,
            zone=zone_name(size.region, zone),
            shape=size.name,
            capacity_type=capacity_type,
        ),
        usd_per_hour=math.nan,
        priced_at_s=now_s,
        source=PRICES_SOURCE,
        num_nodes=num_nodes,
        start_up_s=START_UP_S,
        jurisdiction=jurisdiction_of(NAME, size.region),
        vendor=_vendor(size.name),
    )
    return offer if price is None else replace(offer, usd_per_hour=price.usd_per_hour)


def _size(row: Row, region: str) -> Size | None:
    places = [each for each in row.get("locationInfo") or [] if _same(each.get("location"), region)]
    zones = {str(zone) for place in places for zone in place.get("zones") or []}
    is_zonal = bool(zones)
    for restriction in row.get("restrictions") or []:
        if restriction.get("type") == "Location":
            return None
        zones -= {str(zone) for zone in (restriction.get("restrictionInfo") or {}).get("zones") or []}
    if not places or (is_zonal and not zones):
        return None
    facts = {str(each.get("name")): str(each.get("value")) for each in row.get("capabilities") or []}
    return Size(
        name=str(row["name"]),
        region=region,
        zones=tuple(sorted(zones)),
        family=str(row.get("family", "")),
        num_cores=_whole(facts.get("vCPUs")),
        num_accelerators=_whole(facts.get("GPUs")),
        is_spot_capable=facts.get("LowPriorityCapable") == "True",
    )


def _headroom(usages: Sequence[Row]) -> dict[str, int]:
    """Return how many more cores each quota of the region allows, by its name in lower case."""
    return {
        str((row.get("name") or {}).get("value", "")).lower(): int(row["limit"]) - int(row["currentValue"])
        for row in usages
    }


def _nodes_within(headroom: Mapping[str, int], size: Size, capacity_type: CapacityType) -> int | None:
    """Return how many nodes the quotas allow that count for them; None when none of them is known."""
    is_spot = capacity_type is CapacityType.SPOT
    # One quota for all spot cores of a region; on-demand cores count for the region's and for their family's.
    names = ("lowprioritycores",) if is_spot else ("cores", size.family.lower())
    known = [headroom[name] for name in names if name in headroom]
    return max(0, min(known) // size.num_cores) if known and size.num_cores else None


def _reserved(
    reservations: Sequence[Row], shelf: Mapping[str, Size], shapes: Sequence[str]
) -> Iterator[tuple[str, Size, int]]:
    for row in reservations:
        sku = row.get("sku") or {}
        name = str(sku.get("name", ""))
        if name not in shapes or name not in shelf:
            continue
        used = ((row.get("properties") or {}).get("instanceView") or {}).get("utilizationInfo") or {}
        num_used = len(used.get("virtualMachinesAllocated") or [])
        zones = row.get("zones") or [""]
        yield (
            str(zones[0]),
            shelf[name],
            max(0, int(used.get("currentCapacity") or sku.get("capacity") or 0) - num_used),
        )


def _price_row(row: Row, now_s: float) -> PriceRow | None:
    product, meter = str(row.get("productName", "")), str(row.get("skuName", ""))
    begins_s = _seconds(row.get("effectiveStartDate"))
    if (
        row.get("type") != "Consumption"
        or row.get("unitOfMeasure") != _HOUR
        or float(row.get("tierMinimumUnits") or 0) > 0
        or "Windows" in product
        or "Cloud Services" in product
        or meter.endswith("Low Priority")
        or begins_s is None
        or begins_s > now_s
    ):
        return None
    spot = meter.endswith("Spot")
    return PriceRow(
        pool=Pool(
            cloud=NAME,
            region=str(row.get("armRegionName", "")),
            zone="",
            shape=str(row.get("armSkuName", "")),
            capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        ),
        amount_per_hour=float(row.get("retailPrice", math.nan)),
        currency=str(row.get("currencyCode", "")),
        priced_at_s=begins_s,
        source=PRICES_SOURCE,
    )


def _seconds(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _literal(text: str) -> str:
    """Return ``text`` as the resource graph's language writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _vendor(size: str) -> str:
    return next((vendor for word, vendor in _VENDORS.items() if word in size.upper()), "")


def _same(one: Any, other: str) -> bool:
    return str(one).lower() == other.lower()
