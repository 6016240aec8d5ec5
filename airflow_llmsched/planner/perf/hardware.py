"""Reads the packaged facts about hardware. Owns the files' format; knows no formula."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeVar

from airflow_llmsched.domain.hardware import (
    Accelerator,
    Fabric,
    FabricTopology,
    Host,
    LinkLevel,
    NodeShape,
    NumberFormat,
    Transport,
)
from airflow_llmsched.errors import SpecError
from airflow_llmsched.units import GIB

_Fact = TypeVar("_Fact")
_Word = TypeVar("_Word", bound=StrEnum)

LOCAL_SHAPE = "local-cpu"
"""Shape of the local engine's nodes: each slot is one process on one core."""

IDLE_RATIO = 0.1
"""Share of its power limit that an accelerator without a measurement is taken to draw at rest: an assumption."""


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return every known accelerator by name."""
    return MappingProxyType({name: read_accelerator(name, row) for name, row in _table("accelerators").items()})


@cache
def fabrics() -> Mapping[str, Fabric]:
    """Return every known kind of network by name."""
    return MappingProxyType({name: read_fabric(name, row) for name, row in _table("fabrics").items()})


@cache
def node_shapes() -> Mapping[str, NodeShape]:
    """Return every known node shape by name, at list price."""
    rows = _table("shapes")
    return MappingProxyType({name: read_shape(name, _inherited(name, rows)) for name in rows})


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
    return replace(
        shape,
        usd_per_hour=usd_per_hour,
        source=f"{shape.source}; price set by the user",
        price_source="set by the user",
    )


def read_accelerator(name: str, row: Mapping[str, Any]) -> Accelerator:
    """Return the accelerator that one row of ``accelerators.toml`` states.

    Raises:
        SpecError: a key that no accelerator has, or a number format that is unknown.
    """
    path = f"accelerators.{name}"
    values = {key: value for key, value in row.items() if key not in {"memory_gib", "reserved_gib", "idle_source"}}
    values["memory_bytes"] = int(row["memory_gib"] * GIB)
    values["reserved_bytes"] = int(row["reserved_gib"] * GIB)
    values["peak_flop_per_s"] = MappingProxyType(
        {_known(NumberFormat, each, path=path): float(rate) for each, rate in row["peak_flop_per_s"].items()}
    )
    values.setdefault("idle_w", IDLE_RATIO * row.get("power_limit_w", 0.0))
    if "idle_source" in row:
        values["source"] = f"{row['source']}; at rest: {row['idle_source']}"
    return Accelerator(name=name, **_checked(values, Accelerator, path=path))


def read_fabric(name: str, row: Mapping[str, Any]) -> Fabric:
    """Return the network that one row of ``fabrics.toml`` states.

    Raises:
        SpecError: a key that no fabric has, or a topology or transport that is unknown.
    """
    path = f"fabrics.{name}"
    values = dict(row)
    if "topology" in row:
        values["topology"] = _known(FabricTopology, row["topology"], path=path)
    if "transport" in row:
        values["transport"] = _known(Transport, row["transport"], path=path)
    return Fabric(name=name, **_checked(values, Fabric, path=path))


def read_shape(name: str, row: Mapping[str, Any]) -> NodeShape:
    """Return the node shape that one row of ``shapes.toml`` states, once it holds all that it inherits.

    The network's rate of one accelerator is what the node's cards carry, divided evenly.

    Raises:
        SpecError: a key that no shape has, or an accelerator or a fabric that is not among the facts.
    """
    path = f"shapes.{name}"
    values = dict(row)
    values["accelerator"] = _fact(accelerators(), row["accelerator"], path=f"{path}.accelerator")
    for key in ("intra_node", "inter_node"):
        values[key] = _fact(fabrics(), row[key], path=f"{path}.{key}")
    values["inter_node_bandwidth_bytes_per_s"] = (
        row["num_nics"] * row["nic_bandwidth_bytes_per_s"] / row["num_accelerators"]
    )
    if "island" in row:
        island = {**row["island"], "fabric": _fact(fabrics(), row["island"]["fabric"], path=f"{path}.island.fabric")}
        values["island"] = LinkLevel(**_checked(island, LinkLevel, path=f"{path}.island"))
    values["host"] = _host(row.get("host", {}), path=f"{path}.host")
    return NodeShape(name=name, **_checked(values, NodeShape, path=path))


def _host(row: Mapping[str, Any], *, path: str) -> Host:
    values = {key: value for key, value in row.items() if key != "memory_gib"}
    values["memory_bytes"] = int(row.get("memory_gib", 0) * GIB)
    return Host(**_checked(values, Host, path=path))


def _inherited(name: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Fill a row with what the one it is ``like`` says; what it says of its host is laid over that one's host."""
    row = dict(rows[name])
    if "like" not in row:
        return row
    parent = _inherited(_fact({each: each for each in rows}, row.pop("like"), path=f"shapes.{name}.like"), rows)
    return {**parent, **row, "host": {**parent.get("host", {}), **row.get("host", {})}}


def _checked(values: Mapping[str, Any], kind: type, *, path: str) -> Mapping[str, Any]:
    known = {each.name for each in fields(kind)} - {"name"}
    for key in values:
        if key not in known:
            raise SpecError(path=f"{path}.{key}", hint=f"unknown key; known: {', '.join(sorted(known))}")
    return values


def _fact(facts: Mapping[str, _Fact], name: str, *, path: str) -> _Fact:
    if name not in facts:
        raise SpecError(path=path, value=name, hint=f"unknown; known: {', '.join(sorted(facts))}")
    return facts[name]


def _known(kind: type[_Word], word: str, *, path: str) -> _Word:
    try:
        return kind(word)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise SpecError(path=path, value=word, hint=f"unknown word; known: {known}") from None


@cache
def _table(name: str) -> dict[str, Any]:
    text = resources.files(f"{__package__}.data").joinpath(f"{name}.toml").read_text("utf-8")
    return dict(tomllib.loads(text)[name])
