"""The fleet that ``llmsched plan`` plans on, as its options describe it."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, node_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Like nodes, all free. ``num_slots`` are the accelerators of each that may be used."""

    shape: NodeShape
    num_nodes: int
    num_slots: int


def read_fleet(
    gpus: str | None, *, nodes: int | None, slots: int | None, shape: str | None, usd_per_hour: float | None
) -> Fleet:
    """Return the fleet that the options describe: ``--gpus N[xSHAPE]``, or ``--nodes``, ``--slots`` and ``--shape``.

    Raises:
        typer.BadParameter: both ways at once, or a text that is no number of accelerators.
        SpecError: no such shape, or a number that does not fill its nodes.
    """
    if gpus is None:
        node = node_shape(shape or LOCAL_SHAPE, usd_per_hour=usd_per_hour)
        return Fleet(shape=node, num_nodes=nodes or 1, num_slots=slots or node.num_accelerators)
    number, _, named = gpus.partition("x")
    if nodes is not None or slots is not None or (named and shape is not None):
        raise typer.BadParameter("says what --nodes, --slots and --shape say: give one of them", param_hint="--gpus")
    if not number.isascii() or not number.isdigit() or int(number) < 1:
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
        raise SpecError(path="gpus", value=num_accelerators, hint=hint)
    return Fleet(shape=node, num_nodes=num_accelerators // size, num_slots=size)
