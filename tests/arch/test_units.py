"""A number in a domain value carries its unit in its name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Mapping

import pytest

from tests.support.source import dotted, modules

UNIT_SUFFIXES = (
    "_bytes",
    "_s",
    "_bytes_per_s",
    "_bytes_per_rank",
    "_bytes_per_step",
    "_flop",
    "_flop_per_s",
    "_usd",
    "_usd_per_hour",
    "_usd_per_byte",
    "_g",
    "_w",
    "_j",
    "_per_hour",
    "_per_s",
    "_tokens",
    "_ratio",
    "_size",
    "_steps",
)
COUNT_PREFIXES = ("num_", "max_", "min_")
STATISTIC = re.compile(r"_(median|mean|p\d\d)$")

# Ordinals, degrees and pure numbers, for which any unit would be noise. Keep this short: a new entry needs a reason.
ORDINALS = frozenset(
    {
        *("rank", "slot", "index", "step", "seq", "attempt", "generation", "rental", "pid", "seed"),
        *("preference", "priority", "traffic_class", "service_level"),
    }
)
DEGREES = frozenset(
    {"dp", "tp", "pp", "cp", "ep", "vp", "expert_tp", "zero_stage", "lora_rank", "keep_last", "accelerators_per_rank"}
)
PLAIN = frozenset({"exit_code", "signal", "loss", "learning_rate", "weight"})
# Tables of counts and positions by name.
COUNT_TABLES = frozenset({"reasons", "rejections", "positions"})
# Relative weights have no unit by nature, and that of a check stands beside its number.
WITHOUT = frozenset({"ObjectiveWeights", "QueueWeights", "Check"})

DOMAIN = [dotted(module) for module in modules() if module.is_relative_to("airflow_llmsched/domain")]


def _is_numeric(annotation: object) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_numeric(each) for each in typing.get_args(annotation))
    if isinstance(typing.get_origin(annotation), type) and issubclass(typing.get_origin(annotation), Mapping):
        return _is_numeric(typing.get_args(annotation)[1])
    return annotation in (int, float)


def _has_unit(name: str) -> bool:
    name = "_" + STATISTIC.sub("", name)
    return (
        name[1:] in DEGREES | PLAIN | COUNT_TABLES
        or name.endswith(UNIT_SUFFIXES)
        or name.endswith(tuple("_" + ordinal for ordinal in ORDINALS))
        or name[1:].startswith(COUNT_PREFIXES)
    )


def _values(module: str) -> list[type]:
    found = importlib.import_module(module)
    return [
        each
        for _, each in inspect.getmembers(found, inspect.isclass)
        if each.__module__ == module and dataclasses.is_dataclass(each)
    ]


@pytest.mark.parametrize("module", DOMAIN)
def test_numeric_domain_fields_carry_their_unit(module):
    bare = [
        f"{value.__name__}.{field.name}"
        for value in _values(module)
        if value.__name__ not in WITHOUT
        for field in dataclasses.fields(value)
        if _is_numeric(typing.get_type_hints(value)[field.name]) and not _has_unit(field.name)
    ]
    assert bare == []


@pytest.mark.parametrize("module", DOMAIN)
def test_domain_values_are_frozen_and_keyword_only(module):
    for value in _values(module):
        parameters = value.__dataclass_params__
        assert parameters.frozen, f"{value.__name__} can be changed"
        assert all(field.kw_only for field in dataclasses.fields(value)), f"{value.__name__} takes positions"


@pytest.mark.parametrize("name", ["save_s", "usd", "num_ranks", "hidden_size", "resumed_from_step", "step_s_p95"])
def test_a_name_with_a_unit_is_accepted(name):
    assert _has_unit(name)


@pytest.mark.parametrize("name", ["memory", "price", "time", "steps_done", "loss_limit", "bytes_"])
def test_a_bare_name_is_refused(name):
    assert not _has_unit(name)
