"""Rows of AWS's catalogues become offers. Pure; prices are US dollars for one node for one hour."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.clouds.aws.shapes import Shape
from airflow_llmsched.clouds.aws.tags import CLOUD
from airflow_llmsched.domain.capacity import Offer, Pool, Purchase
from airflow_llmsched.domain.workload import CapacityType

CURRENCY = "USD"
INSTANCE_PLATFORM = "Linux/UNIX"
"""What a bought capacity block is for (EC2 API, ``PurchaseCapacityBlock``)."""

BLOCK_ENDS_EARLY_S = 1800.0
"""EC2 begins to terminate the instances of a capacity block so long before it ends (EC2 user guide)."""
HOUR_S = 3600.0

JURISDICTIONS: tuple[tuple[str, str], ...] = (
    ("us-", "US"),
    ("ca-", "CA"),
    ("mx-", "MX"),
    ("sa-east-1", "BR"),
    ("eu-west-2", "GB"),
    ("eu-central-2", "CH"),
    ("eu", "EU"),
    ("af-south-1", "ZA"),
    ("ap-east-1", "HK"),
    ("ap-east-2", "TW"),
    ("ap-northeast-2", "KR"),
    ("ap-northeast-", "JP"),
    ("ap-south-", "IN"),
    ("ap-southeast-1", "SG"),
    ("ap-southeast-3", "ID"),
    ("ap-southeast-5", "MY"),
    ("ap-southeast-6", "NZ"),
    ("ap-southeast-7", "TH"),
    ("ap-southeast-", "AU"),
    ("me-south-1", "BH"),
    ("me-central-1", "AE"),
    ("il-central-1", "IL"),
    ("cn-", "CN"),
)
"""Whose law a region lies under, by how its name begins; the first that fits counts. Source: AWS's list of regions."""

_QUOTA = re.compile(
    r"(?P<kind>Running On-Demand|All) (?P<families>.+?) (?:instances|Spot Instance Requests)", re.IGNORECASE
)
_FAMILY = re.compile(r"(?P<family>[a-z]+)(?P<generation>\d*)")
_NO_FAMILIES = frozenset({"AND", "STANDARD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A reservation or capacity block of ours, as ``DescribeCapacityReservations`` lists it."""

    id: str
    zone: str
    shape: str
    num_free: int
    is_block: bool
    is_targeted: bool
    is_active: bool
    starts_at_s: float | None
    ends_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of one shape in one region, to make offers of. NaN: no price; None: no head-room known."""

    region: str
    shape: Shape
    zones: Sequence[str]
    on_demand_usd_per_hour: float
    spot_usd_per_hour: Mapping[str, float]
    num_on_demand: int | None
    num_spot: int | None
    scores: Mapping[str, int] | None = None
    held: Sequence[Held] = ()
    blocks: Sequence[Mapping[str, Any]] = ()


def offers(found: Found, *, now_s: float, min_score: int = 0) -> list[Offer]:
    """Return the offers of a shape in a region: on-demand and spot by zone, and what is reserved or could be."""
    on_demand = [
        _offer(found, zone, CapacityType.ON_DEMAND, found.on_demand_usd_per_hour, now_s, num_nodes=found.num_on_demand)
        for zone in found.zones
    ]
    spot = [
        _offer(found, zone, CapacityType.SPOT, found.spot_usd_per_hour[zone], now_s, num_nodes=found.num_spot)
        for zone in found.zones
        # A zone without a spot price has no spot capacity to offer.
        if zone in found.spot_usd_per_hour and (found.scores is None or found.scores.get(zone, 0) >= min_score)
    ]
    held = [
        _offer(
            found,
            each.zone,
            CapacityType.RESERVED,
            # A block is paid for when it is bought; a reservation costs the same used or not.
            0.0 if each.is_block else found.on_demand_usd_per_hour,
            now_s,
            num_nodes=each.num_free,
            starts_at_s=each.starts_at_s,
            ends_at_s=each.ends_at_s,
        )
        for each in found.held
    ]
    return [*on_demand, *spot, *held, *(_block(found, row, now_s) for row in found.blocks)]


def on_demand_usd_per_hour(price_list: Iterable[str]) -> float:
    """Return the price in ``GetProducts``' ``PriceList``, NaN without one in US dollars.

    Rows that cost nothing are for capacity that is paid for otherwise. Of several prices the highest counts: none is
    then better than what is billed.
    """
    prices = [
        float(dimension["pricePerUnit"][CURRENCY])
        for row in price_list
        for term in json.loads(row).get("terms", {}).get("OnDemand", {}).values()
        for dimension in term.get("priceDimensions", {}).values()
        if dimension.get("unit") == "Hrs" and CURRENCY in dimension.get("pricePerUnit", {})
    ]
    return max((each for each in prices if each > 0.0), default=math.nan)


def spot_usd_per_hour(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the newest price in ``SpotPriceHistory`` by instance type and zone."""
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        at = (row["InstanceType"], row["AvailabilityZone"])
        if at not in newest or row["Timestamp"] > newest[at]["Timestamp"]:
            newest[at] = row
    prices: dict[str, dict[str, float]] = {}
    for (shape, zone), row in newest.items():
        prices.setdefault(shape, {})[zone] = float(row["SpotPrice"])
    return prices


def zones(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the zones that have each instance type, of ``InstanceTypeOfferings``."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["InstanceType"], []).append(row["Location"])
    return {shape: sorted(set(where)) for shape, where in sorted(found.items())}


def held(rows: Iterable[Mapping[str, Any]]) -> list[Held]:
    """Return the reservations that can be launched into, now or later, of ``CapacityReservations``."""
    found = []
    for row in rows:
        if row["State"] not in ("active", "scheduled"):
            continue
        is_block = row.get("ReservationType") == "capacity-block"
        ends = row.get("EndDate")
        found.append(
            Held(
                id=row["CapacityReservationId"],
                zone=row["AvailabilityZone"],
                shape=row["InstanceType"],
                num_free=row["AvailableInstanceCount"] if row["State"] == "active" else row["TotalInstanceCount"],
                is_block=is_block,
                is_targeted=is_block or row.get("InstanceMatchCriteria") == "targeted",
                is_active=row["State"] == "active",
                starts_at_s=row["StartDate"].timestamp() if "StartDate" in row else None,
                ends_at_s=ends.timestamp() - (BLOCK_ENDS_EARLY_S if is_block else 0.0) if ends else None,
            )
        )
    return sorted(found, key=lambda each: each.id)


def head_room(
    shape: Shape, *, is_spot: bool, quotas: Iterable[Mapping[str, Any]], instances: Iterable[Mapping[str, Any]]
) -> int | None:
    """Return how many nodes of a shape the account may still have in a region, None where no quota names the shape.

    EC2 counts virtual CPUs of a family, or of one generation of it (service quotas, ``ec2``). What counts against the
    quota are the region's ``instances`` that run or start.
    """
    found = _quota(shape.name, is_spot=is_spot, quotas=quotas)
    if found is None:
        return None
    families, limit = found
    used = sum(
        _num_vcpus(row)
        for row in instances
        if (row.get("InstanceLifecycle") == "spot") == is_spot and _families(row["InstanceType"]) & families
    )
    return max(0, int((limit - used) // shape.num_vcpus))


def jurisdiction(region: str) -> str:
    """Return whose law a region lies under (ISO 3166 code, or ``EU``), empty where we do not know."""
    return next((law for start, law in JURISDICTIONS if region.startswith(start)), "")


def _quota(shape: str, *, is_spot: bool, quotas: Iterable[Mapping[str, Any]]) -> tuple[frozenset[str], float] | None:
    """Return the families that share the quota, and its virtual CPUs. A generation's own counts before the family's."""
    wanted = _families(shape)
    found: list[tuple[int, frozenset[str], float]] = []
    for row in quotas:
        named = _QUOTA.fullmatch(row["QuotaName"])
        if named is None or (named["kind"].lower() == "all") != is_spot:
            continue
        families = frozenset(re.findall(r"[A-Z]+\d*", named["families"].upper())) - _NO_FAMILIES
        if wanted & families:
            found.append((max(len(each) for each in wanted & families), families, float(row["Value"])))
    if not found:
        return None
    _, families, limit = max(found, key=lambda each: each[0])
    return families, limit


def _families(shape: str) -> frozenset[str]:
    """Return the names by which a quota may mean an instance type: ``P`` and ``P5`` for ``p5.48xlarge``."""
    named = _FAMILY.match(shape)
    if named is None:
        return frozenset()
    return frozenset({named["family"].upper(), (named["family"] + named["generation"]).upper()})


def _num_vcpus(row: Mapping[str, Any]) -> int:
    cpu = row.get("CpuOptions", {})
    return int(cpu.get("CoreCount", 0)) * int(cpu.get("ThreadsPerCore", 0))


def _offer(
    found: Found,
    zone: str,
    capacity_type: CapacityType,
    usd_per_hour: float,
    now_s: float,
    *,
    num_nodes: int | None,
    starts_at_s: float | None = None,
    ends_at_s: float | None = None,
    source: str = "aws",
    purchase: Purchase | None = None,
) -> Offer:
    return Offer(
        pool=Pool(cloud=CLOUD, region=found.region, zone=zone, shape=found.shape.name, capacity_type=capacity_type),
        usd_per_hour=usd_per_hour,
        priced_at_s=now_s,
        source=source,
        num_nodes=num_nodes,
        starts_at_s=starts_at_s,
        ends_at_s=ends_at_s,
        jurisdiction=jurisdiction(found.region),
        vendor=found.shape.vendor,
        purchase=purchase,
    )


def _block(found: Found, row: Mapping[str, Any], now_s: float) -> Offer:
    """Return a capacity block that could be bought. Its fee is for all nodes, and paid at once."""
    lasts_s = (row["EndDate"] - row["StartDate"]).total_seconds()
    is_known = row.get("CurrencyCode") == CURRENCY and "UpfrontFee" in row
    fee_usd = float(row["UpfrontFee"]) if is_known else math.nan
    number, zone = row["InstanceCount"], row["AvailabilityZone"]
    window = f"{row['StartDate']:%Y-%m-%d %H:%M} to {row['EndDate']:%Y-%m-%d %H:%M} UTC"
    command = (
        f"aws ec2 purchase-capacity-block --region {found.region} "
        f"--capacity-block-offering-id {row['CapacityBlockOfferingId']} --instance-platform {INSTANCE_PLATFORM}"
    )
    what = f"capacity block {row['CapacityBlockOfferingId']} of {number} {found.shape.name} in {zone}, {window}"
    return _offer(
        found,
        zone,
        CapacityType.RESERVED,
        fee_usd / number / (lasts_s / HOUR_S),
        now_s,
        num_nodes=number,
        starts_at_s=row["StartDate"].timestamp(),
        ends_at_s=row["EndDate"].timestamp() - BLOCK_ENDS_EARLY_S,
        source=f"aws: capacity block {row['CapacityBlockOfferingId']}, to be bought",
        purchase=Purchase(what=what, usd=fee_usd, command=command),
    )
