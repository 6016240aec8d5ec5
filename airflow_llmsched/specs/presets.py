"""Shipped models by name, one YAML file each under ``presets/``: a shape, its exact parameter total and its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.specs import tree
from airflow_llmsched.specs.schema import ShapeBlock
from airflow_llmsched.specs.shapes import to_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A shipped model. ``num_parameters`` is the exact total its publisher's files hold."""

    shape: ModelShape
    num_parameters: int
    source: str


@cache
def names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    files = (resources.files(__package__) / "presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def get(name: str) -> Preset:
    """Return a preset. Raises ``KeyError`` for a name that is not in :func:`names`."""
    if name not in names():
        raise KeyError(name)
    file = resources.files(__package__) / "presets" / f"{name}.yaml"
    plain = tree.parse(file.read_text(encoding="utf-8"), file=str(file)).plain()
    shape = to_shape(ShapeBlock.model_validate(plain["shape"]), name=name)
    return Preset(shape=shape, num_parameters=plain["num_parameters"], source=plain["source"])
