"""Reads what tasks are told of electricity and carbon: what both count for, and what they are where no cloud tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.energy_terms import NO_ENERGY, EnergyTerms, Grid
from airflow_llmsched.planner.market.offers import Weights
from airflow_llmsched.provider.shape_arguments import only

KNOWN = ("electricity", "usd_per_t_co2", "grids", "overhead")
_GRID = ("usd_per_kwh", "g_co2_per_kwh")

_G_PER_T = 1e6


def energy_terms(told: Mapping[str, Any] | None, *, clouds: Mapping[str, Any], path: str = "energy") -> EnergyTerms:
    """Return what electricity and carbon count for. Raises ``SpecError`` naming the argument that is wrong."""
    if not told:
        return NO_ENERGY
    if not isinstance(told, Mapping):
        hint = "must say what counts, such as {'usd_per_t_co2': 100, 'grids': {'aws/us-east-1': {...}}}"
        raise SpecError(path=path, value=told, hint=hint)
    only(told, KNOWN, path=path)
    grids = told.get("grids") or {}
    if not isinstance(grids, Mapping):
        raise SpecError(path=f"{path}.grids", value=grids, hint="must be mappings by cloud/region")
    return EnergyTerms(
        weights=Weights(
            usd_per_energy_usd=_number(told.get("electricity", 0.0), path=f"{path}.electricity"),
            usd_per_carbon_g=_number(told.get("usd_per_t_co2", 0.0), path=f"{path}.usd_per_t_co2") / _G_PER_T,
        ),
        grids={
            str(name): _grid(name, each, clouds=clouds, path=f"{path}.grids.{name}") for name, each in grids.items()
        },
        overhead_ratio=_number(told.get("overhead", 0.0), path=f"{path}.overhead"),
    )


def _grid(name: Any, told: Any, *, clouds: Mapping[str, Any], path: str) -> Grid:
    cloud, _, region = str(name).partition("/")
    if cloud not in clouds or not region:
        hint = f"must be named cloud/region, with one of the clouds {', '.join(clouds)}"
        raise SpecError(path=path, value=told, hint=hint)
    if not isinstance(told, Mapping) or not told:
        raise SpecError(path=path, value=told, hint=f"must say one of {', '.join(_GRID)}")
    only(told, _GRID, path=path)
    price, carbon = (None if told.get(key) is None else _number(told[key], path=f"{path}.{key}") for key in _GRID)
    return Grid(usd_per_kwh=price, carbon_g_per_kwh=carbon)


def _number(value: Any, *, path: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # a template may have made text of it
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise SpecError(path=path, value=value, hint="must be a number, 0 or more")
    return number
