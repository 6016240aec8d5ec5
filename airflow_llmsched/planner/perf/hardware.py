"""Reads the packaged facts about hardware. Owns the file's format; knows no formula."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from airflow_llmsched.domain.hardware import Accelerator, NodeShape, NumberFormat
from airflow_llmsched.errors import SpecError
from airflow_llmsched.units import GIB

LOCAL_SHAPE = "local-cpu"
"""Shape of the local engine's nodes: each slot is one process on one core."""


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return every known accelerator by name."""
    return MappingProxyType({name: _accelerator(name, row) for name, row in _tables()["accelerators"].items()})


@cache
def node_shapes() -> Mapping[str, NodeShape]:
    """Return every known node shape by name, at list price."""
    return MappingProxyType({name: _shape(name, row) for name, row in _tables()["shapes"].items()})


def node_shape(name: str, *, usd_per_hour: float | None = None) -> NodeShape:
    """Return one shape, at ``usd_per_hour`` for the whole node instead of the list price where given.

    Raises:
        SpecError: no such shape (the message names the known ones), or a negative price.
    """
    try:
        shape = node_shapes()[name]
    except KeyError:
        hint = f"no such node shape; known: {', '.join(sorted(node_shapes()))}"
        raise SpecError(path="shape", value=name, hint=hint) from None
    if usd_per_hour is None:
        return shape
    if usd_per_hour < 0:
        raise SpecError(path="usd_per_hour", value=usd_per_hour, hint="a price is zero or more")
    return replace(shape, usd_per_hour=usd_per_hour, source=f"{shape.source}; price set by the user")


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(resources.files(f"{__package__}.data").joinpath("hardware.toml").read_text("utf-8"))


def _accelerator(name: str, row: Mapping[str, Any]) -> Accelerator:
    return Accelerator(
        name=name,
        memory_bytes=int(row["memory_gib"] * GIB),
        memory_bandwidth_bytes_per_s=row["memory_bandwidth_bytes_per_s"],
        peak_flop_per_s=MappingProxyType(
            {NumberFormat(number_format): rate for number_format, rate in row["peak_flop_per_s"].items()}
        ),
        source=row["source"],
        reserved_bytes=int(row["reserved_gib"] * GIB),
        achievable_compute_ratio=row["achievable_compute_ratio"],
        kernel_overhead_s=row.get("kernel_overhead_s", 5e-6),
    )


def _shape(name: str, row: Mapping[str, Any]) -> NodeShape:
    return NodeShape(name=name, **{**row, "accelerator": accelerators()[row["accelerator"]]})
