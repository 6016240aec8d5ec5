"""At which address and port a gang's processes are reached, beside its one meeting point. Pure.

A node's supervisor holds a port for every member of the node that others must find by itself, until it binds it (with
SO_REUSEADDR, as gRPC, torch and Python's servers do); all supervisors know all of them before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers.devices import TPU, vendor_of
from airflow_llmsched.agent.meeting import Meeting

_MAX_NODES = 900

Ports = Mapping[str, Sequence[int]]
"""By node, the ports held there for its members that need one, in the order of :func:`_members_of`."""


def num_ports(body: Mapping[str, Any], *, node: str) -> int:
    """Return how many ports the node's supervisor must hold for its members."""
    return next(len(_members_of(body, part)) for part in body["nodes"] if part["node"] == node)


def address_of(body: Mapping[str, Any], node_index: int) -> str:
    """Return what tools know a node by: its address, or a loopback one of its own (all of 127.0.0.0/8 is)."""
    address = body["nodes"][node_index].get("address")
    if address is not None:
        return str(address)
    assert node_index < _MAX_NODES, node_index
    return f"127.0.{node_index // 100 + 1}.{node_index % 100 + 100}"


def addresses(body: Mapping[str, Any], ports: Ports) -> dict[str, list[str]]:
    """Return ``host:port`` of every member that has a port: by role, in the order of their indexes in it."""
    found: dict[str, dict[int, str]] = {}
    for node_index, part in enumerate(body["nodes"]):
        for (role, index), port in zip(_members_of(body, part), ports.get(part["node"], ()), strict=True):
            found.setdefault(role, {})[index] = Meeting(address_of(body, node_index), port).endpoint
    return {role: [known[index] for index in sorted(known)] for role, known in found.items()}


def _members_of(body: Mapping[str, Any], part: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return role and index of a node's members that others must be able to reach."""
    trainers = [(wire.TRAINER, rank) for rank in part["ranks"]] if _reaches_trainers(body) else []
    return [*trainers, *((helper["role"], helper["index"]) for helper in part.get("helpers", ()))]


def _reaches_trainers(body: Mapping[str, Any]) -> bool:
    """Whether each trainer serves on a port of its own."""
    return body.get("launcher") == "tf_config" or (vendor_of(body) == TPU and len(body["nodes"]) == 1)
