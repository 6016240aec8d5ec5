"""Each block is checked on its own, and pydantic's words become ours."""

from __future__ import annotations

import pytest

from airflow_llmsched.specs.schema import DataBlock, RoleBlock, SpecModel
from airflow_llmsched.specs.validate import block_of, fields_of, validate
from tests.support.specs import DROP, SMALL, small


def found(changes: dict[str, object]) -> dict[str, str]:
    return {".".join(map(str, each.path)): each.hint for each in validate(small(changes))[1]}


def test_a_sound_spec_has_no_problems_and_keeps_its_values() -> None:
    spec, problems = validate(SMALL)
    assert problems == []
    assert (spec.name, spec.budget.steps) == ("small", 10)


def test_a_bad_block_does_not_hide_a_good_one_nor_another_bad_one() -> None:
    spec, problems = validate(small({"data.kind": "filez", "seed": -1, "budget.steps": 7}))
    assert {each.path[0] for each in problems} == {"data", "seed"}
    assert spec.budget.steps == 7


@pytest.mark.parametrize(
    ("changes", "path", "says"),
    [
        ({"stag": "sft"}, "stag", "did you mean 'stage'?"),
        ({"data.knd": "files"}, "data.knd", "did you mean 'kind'?"),
        ({"roles": [{"kind": "trainer", "comand": []}]}, "roles.0.comand", "did you mean 'command'?"),
        ({"batch.schedule": [{"from": 0, "fro": 0}]}, "batch.schedule.0.fro", "did you mean 'from'?"),
        ({"zzzz": 1}, "zzzz", "known here: version, name"),
        ({"data.kind": DROP}, "data.kind", "is required: python_stdlib"),
        ({"name": DROP}, "name", "is required: Label"),
        ({"batch.schedule": [{}]}, "batch.schedule.0.from", "is required: Tokens seen"),
        ({"data": 3}, "data", "block of keys"),
        ({"data": None}, "data", "block of keys"),
        ({"roles": {}}, "roles", "must be a list"),
        ({"seed": "x"}, "seed", "whole number"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"name": 5}, "name", "must be text; put it in quotes"),
        ({"optimizer.master_weights": "yes"}, "optimizer.master_weights", "true or false"),
        ({"objective.cost": float("nan")}, "objective.cost", "finite"),
        ({"objective.cost": -1}, "objective.cost", "must be greater than or equal to 0"),
        ({"objective": 3}, "objective", "block of keys"),
        ({"parallelism": "automatic"}, "parallelism", "did you mean 'auto'?"),
        ({"version": 2}, "version", "must be 1"),
        ({"memory": {"tiers": []}}, "memory.version", "is required"),
        (
            {"memory": {"version": 1, "tiers": [{"tier": "hmb", "bytes_per_rank": "1GB"}]}},
            "memory.tiers.0.tier",
            "'hbm'",
        ),
        ({"launcher.environment": {"A": 1}}, "launcher.environment.A", "quotes"),
        ({"launcher.command": "python x"}, "launcher.command", "must be a list"),
    ],
)
def test_each_kind_of_mistake_is_named_where_it_is(changes, path, says) -> None:
    problems = found(changes)
    assert list(problems) == [path]
    assert says in problems[path]


def test_lone_surrogates_are_refused_as_text() -> None:
    assert "name" in found({"name": "\ud800"})


def test_keys_are_those_that_a_spec_writes() -> None:
    block = block_of(SpecModel.model_fields["batch"].annotation)
    assert block is not None
    phase = block_of(block.model_fields["schedule"].annotation)
    assert phase is not None
    assert "from" in fields_of(phase)
    assert block_of(SpecModel.model_fields["roles"].annotation) is RoleBlock
    assert block_of(DataBlock | None) is DataBlock
    assert block_of(int | None) is None
