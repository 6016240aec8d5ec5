"""Reads what a gang's task is told about the capacity that a rental policy is to choose for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.checkpoint_way import SavedState, checkpoint_bytes
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.provider.capacity_arguments import (
    WISHES,
    capacity_request,
    copy_bytes_per_s,
    duration_s,
    number,
    safe_hold_s,
)
from airflow_llmsched.provider.own_hazards import fitted_hazards
from airflow_llmsched.provider.rental_policy import PolicySettings
from airflow_llmsched.provider.rentals import RentalSettings
from airflow_llmsched.provider.shape_arguments import only, parsed
from airflow_llmsched.specs.quantities import parse_bytes
from airflow_llmsched.units import HOUR_S

if TYPE_CHECKING:
    from airflow_llmsched.domain.workload import WorkloadSpec
    from airflow_llmsched.provider.gang_run import GangSettings

KNOWN = (
    "clouds",
    "shapes",
    *WISHES,
    "data",
    "rework",
    "max_usd_per_hour",
    "hold",
    "wait",
    "changeover",
    "storages",
    "checkpoint",
    "stock",
    "energy",
    "correlation",
    "traces",
)
STOCK = ("lasts", "out", "max_late")
CHECKPOINT = ("size", "egress_usd_per_gb", "gb_per_s")

_MAX_LATE_RATIO = 0.001

LEAVE_S = 60.0
"""What it takes beside a gang's own grace until a worker has acted on a review: Airflow has to start one."""


def policy_settings(
    told: Mapping[str, Any], gang: GangSettings, spec: WorkloadSpec, *, purpose: str, tick_s: float
) -> PolicySettings:
    """Return how the run is rented for.

    Raises:
        SpecError: naming the argument that is wrong; or the spec sets neither a date nor a sum.
        RelaxError: the run can be planned on none of the node shapes.
    """
    only(told, KNOWN, path="capacity")
    stock, max_late_ratio = _stock(told.get("stock") or {})
    if gang.deadline_s is None and spec.budget.max_usd is None:
        hint = "a rental policy needs a date or a sum: set budget.deadline or budget.max_usd in the spec"
        raise SpecError(path="capacity", hint=hint)
    request = capacity_request(
        clouds=told.get("clouds") or {},
        shapes=told.get("shapes"),
        wishes={name: told[name] for name in WISHES if told.get(name)},
        data=told.get("data", ()),
        deadline_s=gang.deadline_s,
        rework=told.get("rework", "20min"),
        max_usd_per_hour=told.get("max_usd_per_hour"),
        energy=told.get("energy"),
        correlation=told.get("correlation"),
        spec=spec,
        scope=gang.scope,
    )
    return PolicySettings(
        rental=RentalSettings(
            scope=gang.scope,
            purpose=purpose,
            request=request,
            generation=gang.generation,
            since_s=gang.owner_since_s or 0.0,
            hold_s=safe_hold_s(told.get("hold", "1h")),
        ),
        tick_s=tick_s,
        slack_s=LEAVE_S + spec.launcher.grace_s + gang.poll_interval_s,
        changeover_s=duration_s(told.get("changeover", "10min"), path="capacity.changeover"),
        patience_s=duration_s(told.get("wait", "1h"), path="capacity.wait"),
        stock=stock,
        max_late_ratio=max_late_ratio,
        traces=_traces(told.get("traces")),
        storages=_storages(told.get("storages") or {}, clouds=told.get("clouds") or {}),
        checkpoint=_checkpoint(told.get("checkpoint") or {}, spec) if told.get("storages") else None,
    )


def _stock(told: Any) -> tuple[StockModel, float]:
    """Return how on-demand capacity comes and goes, and how often that may make a run late. Raises ``SpecError``."""
    if not isinstance(told, Mapping):
        hint = "must say how long on-demand capacity lasts and is out, such as {lasts: 5d, out: 6h}"
        raise SpecError(path="capacity.stock", value=told, hint=hint)
    only(told, STOCK, path="capacity.stock")
    max_late_ratio = _ratio(told.get("max_late", _MAX_LATE_RATIO), path="capacity.stock.max_late")
    if "lasts" not in told and "out" not in told:
        return ALWAYS, max_late_ratio
    lasts_s, out_s = (_span_s(told.get(name, ""), path=f"capacity.stock.{name}") for name in ("lasts", "out"))
    return StockModel(out_per_hour=HOUR_S / lasts_s, back_per_hour=HOUR_S / out_s), max_late_ratio


def _span_s(value: Any, *, path: str) -> float:
    span_s = duration_s(value, path=path)
    if span_s <= 0:
        raise SpecError(path=path, value=value, hint="must be above 0, such as 6h")
    return span_s


def _ratio(value: Any, *, path: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise SpecError(path=path, value=value, hint="must be a probability above 0 and below 1, such as 0.01")
    return float(value)


def _traces(told: Any) -> str:
    """Return the file of traces, which can be fitted; empty for none. Raises ``SpecError``."""
    if told is None or told == "":
        return ""
    if not isinstance(told, str) or not told.startswith("/"):
        hint = "must be the absolute path of a file that workers and triggerers see"
        raise SpecError(path="capacity.traces", value=told, hint=hint)
    fitted_hazards(told)
    return told


def _checkpoint(told: Any, spec: WorkloadSpec) -> SavedState | None:
    """Return what is copied between storages, as large as told or as planned; None: neither. Raises ``SpecError``."""
    path = "capacity.checkpoint"
    if not isinstance(told, Mapping):
        raise SpecError(path=path, value=told, hint=f"must say at most {', '.join(CHECKPOINT)}")
    only(told, CHECKPOINT, path=path)
    job = job_of(spec)
    if "size" in told:
        num_bytes = parsed(parse_bytes, told["size"], path=f"{path}.size")
    elif job is not None:
        num_bytes = checkpoint_bytes(job)
    else:
        return None
    usd_per_gb = told.get("egress_usd_per_gb")
    return SavedState(
        num_bytes=num_bytes,
        bytes_per_s=copy_bytes_per_s(told, path=path),
        egress_usd_per_gb=None if usd_per_gb is None else number(usd_per_gb, path=f"{path}.egress_usd_per_gb"),
    )


def _storages(told: Any, *, clouds: Mapping[str, Any]) -> dict[str, str]:
    """Return folders of checkpoints by ``cloud/region``. Raises ``SpecError``."""
    if not isinstance(told, Mapping):
        raise SpecError(path="capacity.storages", value=told, hint="must be folders by cloud/region")
    for name, folder in told.items():
        cloud, _, region = str(name).partition("/")
        if cloud not in clouds or not region:
            hint = f"must be named cloud/region, with one of the clouds {', '.join(clouds)}"
            raise SpecError(path=f"capacity.storages.{name}", value=folder, hint=hint)
        if not isinstance(folder, str) or not folder.startswith("/"):
            hint = "must be the absolute path of a folder that workers and the region's machines see"
            raise SpecError(path=f"capacity.storages.{name}", value=folder, hint=hint)
    return {str(name): folder.rstrip("/") for name, folder in told.items()}
