"""Google's catalogue as offers. Pure. Compute Engine names no prices: a source of prices adds them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_llmsched.clouds.gcp import sight
from airflow_llmsched.clouds.gcp.record import CLOUD, region_of
from airflow_llmsched.clouds.gcp.render import Reservation
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.jurisdictions import jurisdiction_of

SOURCE = "Compute Engine"
QUEUE_START_UP_S = 1800.0
"""What a queue takes at least, in our books. Google names no time."""

QUOTA_METRIC = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_GPUS",
}
"""The region's quota that an accelerator counts against; of spot, the same with ``PREEMPTIBLE_`` before it."""

READY = "READY"
PROMISED = frozenset({"APPROVED", "COMMITTED", "PROVISIONING", "FULFILLED"})
"""What the status of a future reservation may be for it to be counted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What Google lists: machine types of the shapes asked for, reservations now and later, and regions' quotas."""

    machine_types: Sequence[sight.Json]
    reservations: Sequence[sight.Json] = ()
    future_reservations: Sequence[sight.Json] = ()
    regions: Sequence[sight.Json] = ()


def offers(
    catalogue: Catalogue, need: Requirement, *, regions: Collection[str], queued_shapes: Collection[str], now_s: float
) -> list[Offer]:
    """Return what could be rented of the shapes of ``need`` in ``regions``, where its wish allows, by pool.

    On demand and spot wherever Google has the shape; reserved where something is. What is free is not known beforehand.
    """
    types = [each for each in catalogue.machine_types if each["name"] in need.by_shape]
    quotas = {each["name"]: _quotas(each) for each in catalogue.regions}
    found = [
        _offer(each, kind, quotas=quotas, is_queued=each["name"] in queued_shapes, now_s=now_s)
        for each in types
        for kind in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    ]
    vendors = {each["name"]: _vendor(each) for each in types}
    found += [
        replace(each, vendor=vendors.get(each.pool.shape, ""))
        for each in _reserved(catalogue, now_s=now_s)
        if each.pool.shape in need.by_shape
    ]
    wanted = [each for each in found if each.pool.region in regions and _is_wanted(each.pool, need)]
    return sorted(wanted, key=lambda each: (each.pool, each.starts_at_s or 0.0))


def tpu_offers(
    types: Mapping[str, Sequence[sight.Json]], need: Requirement, *, regions: Collection[str], now_s: float
) -> list[Offer]:
    """Return the slices of TPUs of the shapes of ``need`` by zone. They are always queued for."""
    found = [
        _unpriced(
            Pool(cloud=CLOUD, region=region_of(zone), zone=zone, shape=each["type"], capacity_type=kind),
            now_s=now_s,
            vendor="google",
            start_up_s=QUEUE_START_UP_S,
        )
        for zone, rows in types.items()
        for each in rows
        if each["type"] in need.by_shape
        for kind in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    ]
    return sorted(
        (each for each in found if each.pool.region in regions and _is_wanted(each.pool, need)),
        key=lambda each: each.pool,
    )


def reservation_for(rows: Iterable[sight.Json], *, shape: str, num_nodes: int) -> Reservation | None:
    """Return the first reservation by name that has so many nodes free now; None: there is none.

    Only those that must be named: what is taken from others goes without asking, to whoever comes first.
    """
    usable = [each for each in rows if _is_usable(each) and _shape(each) == shape and _num_free(each) >= num_nodes]
    first = min(usable, key=lambda each: str(each["name"]), default=None)
    return None if first is None else Reservation(name=first["name"], is_bound=bool(first.get("deleteAtTime")))


def _is_wanted(pool: Pool, need: Requirement) -> bool:
    wish = need.wish
    return (
        (not wish.clouds or CLOUD in wish.clouds)
        and (not wish.regions or pool.region in wish.regions)
        and (not wish.capacity_types or pool.capacity_type in wish.capacity_types)
    )


def _offer(
    machine_type: sight.Json,
    kind: CapacityType,
    *,
    quotas: Mapping[str, Mapping[str, float]],
    is_queued: bool,
    now_s: float,
) -> Offer:
    zone = sight.short(machine_type["zone"])
    region = region_of(zone)
    queues = is_queued and kind is CapacityType.ON_DEMAND
    return _unpriced(
        Pool(cloud=CLOUD, region=region, zone=zone, shape=machine_type["name"], capacity_type=kind),
        now_s=now_s,
        vendor=_vendor(machine_type),
        num_nodes=_allowed(machine_type, kind, quotas.get(region, {})),
        **({"start_up_s": QUEUE_START_UP_S} if queues else {}),
    )


def _unpriced(pool: Pool, *, now_s: float, **known: Any) -> Offer:
    return Offer(
        pool=pool,
        usd_per_hour=math.nan,
        priced_at_s=now_s,
        source=SOURCE,
        jurisdiction=jurisdiction_of(CLOUD, pool.region),
        **known,
    )


def _reserved(catalogue: Catalogue, *, now_s: float) -> list[Offer]:
    now = [
        _unpriced(
            _reserved_pool(each),
            now_s=now_s,
            num_nodes=_num_free(each),
            ends_at_s=sight.parse_time_s(each["deleteAtTime"]) if each.get("deleteAtTime") else None,
        )
        for each in catalogue.reservations
        if _is_usable(each)
    ]
    later = [
        _unpriced(
            _reserved_pool(each),
            now_s=now_s,
            num_nodes=int(each["specificSkuProperties"]["totalCount"]),
            starts_at_s=sight.parse_time_s(each["timeWindow"]["startTime"]),
            ends_at_s=_window_end_s(each["timeWindow"]),
        )
        for each in catalogue.future_reservations
        if each.get("status", {}).get("procurementStatus") in PROMISED
        and each.get("specificSkuProperties")
        and sight.parse_time_s(each["timeWindow"]["startTime"]) > now_s
    ]
    return now + later


def _reserved_pool(reservation: sight.Json) -> Pool:
    zone = sight.short(reservation["zone"])
    return Pool(
        cloud=CLOUD,
        region=region_of(zone),
        zone=zone,
        shape=_shape(reservation),
        capacity_type=CapacityType.RESERVED,
    )


def _is_usable(reservation: sight.Json) -> bool:
    return (
        reservation.get("status") == READY
        and bool(reservation.get("specificReservationRequired"))
        and bool(reservation.get("specificReservation"))
    )


def _shape(reservation: sight.Json) -> str:
    sku = reservation.get("specificReservation") or reservation.get("specificSkuProperties") or {}
    return sight.short(sku.get("instanceProperties", {}).get("machineType", ""))


def _num_free(reservation: sight.Json) -> int:
    sku = reservation["specificReservation"]
    return max(0, int(sku.get("assuredCount", sku.get("count", 0))) - int(sku.get("inUseCount", 0)))


def _window_end_s(window: sight.Json) -> float:
    if window.get("endTime"):
        return sight.parse_time_s(window["endTime"])
    return sight.parse_time_s(window["startTime"]) + float(window["duration"]["seconds"])


def _vendor(machine_type: sight.Json) -> str:
    """Return who makes the accelerators: the first word of their name (``nvidia-h100-80gb``)."""
    accelerators = machine_type.get("accelerators", [])
    return accelerators[0]["guestAcceleratorType"].partition("-")[0] if accelerators else ""


def _quotas(region: sight.Json) -> dict[str, float]:
    """Return how much of each quota of a region is left."""
    return {each["metric"]: each.get("limit", 0.0) - each.get("usage", 0.0) for each in region.get("quotas", [])}


def _allowed(machine_type: sight.Json, kind: CapacityType, left: Mapping[str, float]) -> int | None:
    """Return how many nodes the region's quota of their accelerators still allows; None: it does not say."""
    accelerators = machine_type.get("accelerators", [])
    if not accelerators:
        return None
    metric = QUOTA_METRIC.get(accelerators[0]["guestAcceleratorType"], "")
    metric = f"PREEMPTIBLE_{metric}" if kind is CapacityType.SPOT and metric else metric
    if metric not in left:
        return None
    return max(0, int(left[metric] // accelerators[0]["guestAcceleratorCount"]))
