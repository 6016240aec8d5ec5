"""Reads what tasks are told about node shapes, and has the planner say the rest: how many nodes, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_llmsched.domain.capacity import ShapeNeed
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import RelaxError, SpecError
from airflow_llmsched.planner.market.shape_needs import plan_shape
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.registry import DEFAULT_SOLVER, AdapterGroup, load
from airflow_llmsched.specs.quantities import parse_duration_s

Shapes = Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]] | Sequence[str]
"""Node shapes by name, with what is known of the run on each, or on each of several sizes of it; or names alone."""

UNKNOWN = "whose hardware the planner does not know: say num_nodes and work"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeNeeds:
    """What the run takes of each shape, fewest nodes first, and in words why it can use others not at all."""

    by_shape: Mapping[str, tuple[ShapeNeed, ...]]
    refused: Mapping[str, str] = field(default_factory=dict)


def needs_of(shapes: Shapes | None, spec: WorkloadSpec | None, *, calibration: Calibration | None = None) -> ShapeNeeds:
    """Return what the run takes of each shape: as told, else as planned. Without ``shapes``, of every known one.

    ``num_nodes`` and ``work`` of a shape are taken as they are. Without ``work`` the run is planned, on ``num_nodes``
    if that is there; ``slots`` are then the accelerators of a node where they differ from those of the shape. A list
    tells several sizes, each with both. What is planned reckons with ``calibration``, the packaged one if it is None.

    Raises:
        SpecError: an argument is wrong, or the run has no model to plan with.
        RelaxError: the run can be planned on none of the shapes.
    """
    told = {name: {} for name in shapes} if isinstance(shapes, Sequence) else dict(shapes or {})
    by_shape: dict[str, tuple[ShapeNeed, ...]] = {}
    refused: dict[str, str] = {}
    for name, given in (told or {name: {} for name in node_shapes()}).items():
        found = _need(name, given, spec, calibration)
        if isinstance(found, str):
            refused[name] = found
        else:
            by_shape[name] = found
    if not by_shape:
        raise RelaxError("; ".join(f"node shape {name}, {why}" for name, why in refused.items()))
    return ShapeNeeds(by_shape=by_shape, refused=refused)


def is_told(shapes: Shapes | None) -> bool:
    """Whether nothing is left to plan: every shape says how many nodes the run takes, and for how long."""
    if not isinstance(shapes, Mapping):
        return False
    sizes = [size for told in shapes.values() for size in ([told] if isinstance(told, Mapping) else told)]
    return bool(sizes) and all(size.get("work") for size in sizes)


def only(told: Mapping[str, Any], known: Sequence[str], *, path: str) -> None:
    """Raise ``SpecError`` for what is not known."""
    for name in told:
        if name not in known:
            raise SpecError(path=f"{path}.{name}", hint=f"is not known; known: {', '.join(known)}")


def parsed(parse: Any, value: Any, *, path: str) -> Any:
    """Return what ``parse`` makes of text with a unit. Raises ``SpecError`` naming ``path``."""
    try:
        return parse(value)
    except ValueError as error:
        raise SpecError(path=path, value=value, hint=str(error)) from error


def _need(
    name: str,
    told: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    spec: WorkloadSpec | None,
    calibration: Calibration | None,
) -> tuple[ShapeNeed, ...] | str:
    path = f"shapes.{name}"
    if not isinstance(told, Mapping):
        return _sizes(name, told)
    only(told, ("num_nodes", "work", "slots"), path=path)
    if told.get("work") is not None:
        return (_told_need(told, path=path),)
    num_nodes = None if told.get("num_nodes") is None else _count(told["num_nodes"], path=f"{path}.num_nodes")
    if spec is None or spec.model is None:
        hint = "must say num_nodes and work, such as {'num_nodes': 4, 'work': '36h'}: there is no spec with a model"
        raise SpecError(path=f"{path}.work", hint=f"{hint} from which they could be planned")
    shape = node_shapes().get(name)
    if shape is None:
        return UNKNOWN
    if told.get("slots") is not None:
        shape = replace(shape, num_accelerators=_count(told["slots"], path=f"{path}.slots"))
    solver = load(AdapterGroup.PLACEMENT_SOLVERS, DEFAULT_SOLVER)()
    return plan_shape(spec, shape, solver=solver, num_nodes=num_nodes, calibration=calibration)


def _sizes(name: str, told: Sequence[Mapping[str, Any]]) -> tuple[ShapeNeed, ...]:
    """Read several sizes of one shape, fewest nodes first."""
    needs: dict[int, ShapeNeed] = {}
    for index, size in enumerate(told):
        if not size.get("work"):
            raise SpecError(path=f"shapes.{name}[{index}].work", hint="must be there in each of several sizes")
        need = _told_need(size, path=f"shapes.{name}[{index}]")
        needs[need.num_nodes] = need
    if not needs:
        raise SpecError(path=f"shapes.{name}", value=list(told), hint="must have one size at least")
    return tuple(needs[count] for count in sorted(needs))


def _told_need(told: Mapping[str, Any], *, path: str) -> ShapeNeed:
    only(told, ("num_nodes", "work", "slots"), path=path)
    work_s = parsed(parse_duration_s, told["work"], path=f"{path}.work")
    if told.get("num_nodes") is None:
        raise SpecError(path=f"{path}.num_nodes", hint="must be there beside work")
    return ShapeNeed(num_nodes=_count(told["num_nodes"], path=f"{path}.num_nodes"), work_s=work_s)


def _count(value: Any, *, path: str) -> int:
    """Read a whole number above 0, which a template may have made text of."""
    count = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if type(count) is not int or count < 1:
        raise SpecError(path=path, value=value, hint="must be a whole number, 1 or more")
    return count
