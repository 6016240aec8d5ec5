"""What sets a machine apart from others of its shape, from options as JSON to values. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_llmsched.domain.topology import NodeTerms
from airflow_llmsched.errors import SpecError

TERMS = ("usd_per_hour", "failures_per_hour", "data")


def terms_of(plain: Mapping[str, Any], *, at: str) -> NodeTerms:
    """Return the terms among the fields of one machine, ``at`` being its place in the options. Raises ``SpecError``.

    ``usd_per_hour`` and ``failures_per_hour`` are of the whole machine; ``data`` is a list of the folders that it has.
    """
    data = plain.get("data", [])
    if not isinstance(data, list) or not all(isinstance(each, str) and each for each in data):
        raise SpecError(path=f"{at}.data", value=data, hint="must be a list of folders, as specs name them")
    usd_per_hour, failures_per_hour = (_amount(plain, name, at=at) for name in ("usd_per_hour", "failures_per_hour"))
    return NodeTerms(
        usd_per_hour=usd_per_hour, failures_per_hour=failures_per_hour or 0.0, data=tuple(sorted(set(data)))
    )


def _amount(plain: Mapping[str, Any], name: str, *, at: str) -> float | None:
    value = plain.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise SpecError(path=f"{at}.{name}", value=value, hint="must be a number of at least 0")
    return float(value)
