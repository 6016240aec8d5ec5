"""The fleet that ``llmsched plan`` plans on, as its options describe it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import typer

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, node_shape
from airflow_llmsched.topology.reading import MAX_NODES, MAX_SLOTS

MAX_DIGITS = 15
"""Longest number that is read: longer ones are slips of the hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Like nodes, all free. ``num_slots`` are the accelerators of each that may be used.

    ``sharp``: the network's switches are set to add up.
    """

    shape: NodeShape
    num_nodes: int
    num_slots: int
    sharp: bool = False


def read_fleet(
    gpus: str | None,
    *,
    nodes: int | None,
    slots: int | None,
    shape: str | None,
    usd_per_hour: float | None,
    sharp: bool = False,
) -> Fleet:
    """Return the fleet that the options describe: ``--gpus N[xSHAPE]``, or ``--nodes``, ``--slots`` and ``--shape``.

    Raises:
        typer.BadParameter: both ways at once, or a text that is no number of accelerators.
        SpecError: no such shape, a number that does not fill its nodes or is beyond any fleet, or a network that cannot
            add up.
    """
    fleet = _read_nodes(gpus, nodes=nodes, slots=slots, shape=shape, usd_per_hour=usd_per_hour)
    if fleet.num_nodes > MAX_NODES:
        hint = f"is beyond the {MAX_NODES:,} nodes that are planned on at most"
        raise SpecError(path="--nodes" if gpus is None else "--gpus", value=gpus or nodes, hint=hint)
    if fleet.num_slots > MAX_SLOTS:
        raise SpecError(path="--slots", value=slots, hint=f"is beyond the {MAX_SLOTS:,} that a node has at most")
    network = fleet.shape.inter_node
    if sharp and not network.reduces_in_network:
        hint = f"nodes of {fleet.shape.name} are joined by {network.name}, whose switches cannot add up"
        raise SpecError(path="--sharp", hint=hint)
    return replace(fleet, sharp=sharp)


def _read_nodes(
    gpus: str | None, *, nodes: int | None, slots: int | None, shape: str | None, usd_per_hour: float | None
) -> Fleet:
    if gpus is None:
        node = node_shape(shape or LOCAL_SHAPE, usd_per_hour=usd_per_hour)
        return Fleet(shape=node, num_nodes=nodes or 1, num_slots=slots or node.num_accelerators)
    number, _, named = gpus.partition("x")
    if nodes is not None or slots is not None or (named and shape is not None):
        raise typer.BadParameter("says what --nodes, --slots and --shape say: give one of them", param_hint="--gpus")
    if not number.isascii() or not number.isdigit() or len(number) > MAX_DIGITS or int(number) < 1:
        raise typer.BadParameter(f"{gpus!r} is not N or NxSHAPE, as in 64xp5.48xlarge", param_hint="--gpus")
    node = node_shape(named or shape or LOCAL_SHAPE, usd_per_hour=usd_per_hour)
    return _filled(node, int(number))


def _filled(node: NodeShape, num_accelerators: int) -> Fleet:
    size = node.num_accelerators
    if num_accelerators <= size:
        return Fleet(shape=node, num_nodes=1, num_slots=num_accelerators)
    if num_accelerators % size:
        low = num_accelerators // size * size
        hint = f"nodes of {node.name} have {size} accelerators: {low} and {low + size} fill whole ones"
        raise SpecError(path="--gpus", value=num_accelerators, hint=hint)
    return Fleet(shape=node, num_nodes=num_accelerators // size, num_slots=size)
