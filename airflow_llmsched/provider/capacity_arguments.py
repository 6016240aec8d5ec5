"""Reads what operators and sensor are told about wanted capacity: text with units becomes numbers here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_llmsched.domain.capacity import COPY_BYTES_PER_S, DEFAULT_CORRELATION, DataAt, Requirement
from airflow_llmsched.domain.workload import CapacityType, CapacityWish, WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.clouds import Clouds, options_of
from airflow_llmsched.provider.config import handoff_limit_s
from airflow_llmsched.provider.energy_arguments import energy_terms
from airflow_llmsched.provider.engine import check_plain
from airflow_llmsched.provider.rentals import CapacityRequest
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.shape_arguments import Shapes, only, parsed
from airflow_llmsched.provider.shape_memory import needs_in
from airflow_llmsched.specs.quantities import parse_bytes, parse_duration_s
from airflow_llmsched.units import GB

WISHES = ("regions", "jurisdictions", "vendors", "capacity_types")
"""Arguments of a task that say where capacity may come from: filters, each narrowing what the spec allows."""


def wishes_of(task: object) -> Mapping[str, Sequence[str]]:
    """Return what a task was told of each wish."""
    return {name: getattr(task, name) for name in WISHES}


def capacity_request(
    *,
    clouds: Clouds,
    shapes: Shapes | None,
    wishes: Mapping[str, Sequence[str]],
    data: Sequence[Mapping[str, Any]],
    deadline_s: float | None,
    rework: str,
    max_usd_per_hour: float | str | None,
    energy: Mapping[str, Any] | None = None,
    correlation: float | None = None,
    spec: WorkloadSpec | None = None,
    scope: RunScope | None = None,
) -> CapacityRequest:
    """Return what is wanted. The spec's own wish may be narrowed and never widened; its budget is the run's.

    What has to be planned is planned once for a ``scope``.

    Raises:
        SpecError: naming the argument that is wrong.
        RelaxError: the run can be planned on none of the node shapes.
    """
    clouds = options_of(clouds)
    check_plain(clouds, path="clouds")
    if not clouds:
        raise SpecError(path="clouds", value={}, hint="must name at least one cloud, such as {'aws': {...}}")
    wish = _wish(clouds, wishes, CapacityWish() if spec is None else spec.capacity)
    needs = needs_in(scope, shapes, spec, clouds=clouds, wish=wish)
    return CapacityRequest(
        clouds={name: dict(options) for name, options in clouds.items()},
        need=Requirement(
            by_shape={name: sizes[0] for name, sizes in needs.by_shape.items()},
            more_nodes={name: sizes[1:] for name, sizes in needs.by_shape.items() if len(sizes) > 1},
            refused=needs.refused,
            wish=wish,
            data=tuple(_data_at(index, told) for index, told in enumerate(data)),
            deadline_s=deadline_s,
            rework_s=duration_s(rework, path="rework"),
            shared_loss_ratio=_correlation(correlation),
        ),
        max_usd_per_hour=_price(max_usd_per_hour),
        energy=energy_terms(energy, clouds=clouds),
        max_usd=None if spec is None else spec.budget.max_usd,
        num_tokens=0 if spec is None else _num_tokens(spec),
    )


def duration_s(value: str, *, path: str) -> float:
    """Return a duration such as ``36h`` in seconds. Raises ``SpecError`` naming ``path``."""
    seconds: float = parsed(parse_duration_s, value, path=path)
    return seconds


def safe_hold_s(hold: str) -> float:
    """Return how long a lease lasts without being renewed, in seconds.

    Raises ``SpecError`` for less than what a gang may go without anyone who watches it, twice.
    """
    hold_s = duration_s(hold, path="hold")
    if hold_s < 2 * handoff_limit_s():
        hint = f"must be at least twice [llmsched] handoff_limit ({handoff_limit_s():.0f} s), or a lease could end"
        raise SpecError(path="hold", value=hold, hint=f"{hint} while its gang waits for a worker")
    return hold_s


def number(value: Any, *, path: str) -> float:
    """Return a number that is 0 or more. Raises ``SpecError`` naming ``path``."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise SpecError(path=path, value=value, hint="must be a number, 0 or more")
    return float(value)


def copy_bytes_per_s(told: Mapping[str, Any], *, path: str) -> float:
    """Return how fast something comes over, of what is ``told`` under ``path``. Raises ``SpecError``."""
    gb_per_s = told.get("gb_per_s", COPY_BYTES_PER_S / GB)
    if not number(gb_per_s, path=f"{path}.gb_per_s"):
        raise SpecError(path=f"{path}.gb_per_s", value=gb_per_s, hint="must be above 0, or the data never arrives")
    return float(gb_per_s) * GB


def _num_tokens(spec: WorkloadSpec) -> int:
    """Return how many tokens the run trains on, at the first batch's size where the spec tells steps only."""
    return spec.budget.num_tokens or spec.num_steps * spec.batch[0].tokens_per_step


def _price(value: float | str | None) -> float | None:
    """Read a price, which a template may have made text of; empty is none."""
    if value is None or str(value).strip() in ("", "None"):
        return None
    price = float(value) if _is_number(value) else math.nan
    if not 0 < price < math.inf:
        raise SpecError(path="max_usd_per_hour", value=value, hint="must be dollars for a node's hour, above 0")
    return price


def _correlation(value: Any) -> float:
    """Return how much of what nodes are lost by strikes their whole pool. Raises ``SpecError``."""
    if value is None:
        return DEFAULT_CORRELATION
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        hint = "must be between 0 (nodes are lost one by one) and 1 (a pool is lost as a whole)"
        raise SpecError(path="correlation", value=value, hint=hint)
    return float(value)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _data_at(index: int, told: Mapping[str, Any]) -> DataAt:
    path = f"data[{index}]"
    only(told, ("cloud", "region", "size", "egress_usd_per_gb", "gb_per_s"), path=path)
    if not told.get("cloud") or not told.get("region"):
        raise SpecError(path=path, value=dict(told), hint="must say in which cloud and region the data is")
    return DataAt(
        cloud=str(told["cloud"]),
        region=str(told["region"]),
        num_bytes=parsed(parse_bytes, told.get("size"), path=f"{path}.size"),
        egress_usd_per_byte=number(told.get("egress_usd_per_gb", 0.0), path=f"{path}.egress_usd_per_gb") / GB,
        bytes_per_s=copy_bytes_per_s(told, path=path),
    )


def _wish(clouds: Mapping[str, Any], wishes: Mapping[str, Sequence[str]], allowed: CapacityWish) -> CapacityWish:
    def narrowed(name: str) -> tuple[str, ...]:
        return _narrowed(name, wishes.get(name, ()), getattr(allowed, name))

    return CapacityWish(
        clouds=_narrowed("clouds", tuple(clouds), allowed.clouds),
        regions=narrowed("regions"),
        jurisdictions=narrowed("jurisdictions"),
        vendors=narrowed("vendors"),
        capacity_types=tuple(CapacityType(each) for each in _known_types(narrowed("capacity_types"))),
    )


def _narrowed(name: str, wanted: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    if not wanted or not allowed:
        return tuple(str(each) for each in wanted or allowed)
    both = tuple(str(each) for each in wanted if each in allowed)
    if not both:
        hint = f"the spec's capacity.{name} allows only {', '.join(map(str, allowed))}"
        raise SpecError(path=name, value=list(wanted), hint=hint)
    return both


def _known_types(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in list(CapacityType):
            hint = f"must be among {', '.join(CapacityType)}"
            raise SpecError(path="capacity_types", value=name, hint=hint)
    return names
