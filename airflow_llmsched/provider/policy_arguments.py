"""Reads what a gang's task is told about the capacity that a rental policy is to choose for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.capacity_arguments import WISHES, capacity_request, duration_s, safe_hold_s
from airflow_llmsched.provider.rental_policy import PolicySettings
from airflow_llmsched.provider.rentals import RentalSettings
from airflow_llmsched.provider.shape_arguments import only

if TYPE_CHECKING:
    from airflow_llmsched.domain.workload import WorkloadSpec
    from airflow_llmsched.provider.gang_run import GangSettings

KNOWN = ("clouds", "shapes", *WISHES, "data", "rework", "max_usd_per_hour", "hold", "wait", "changeover")

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
    )
