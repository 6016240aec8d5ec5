"""The JSON Schema is valid, accepts what ships, refuses what an editor can see is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from airflow_llmsched.specs import json_schema, presets, reference, tree
from tests.support.specs import SMALL, errors_of, small

SCHEMA = json_schema.json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def plain(text: str) -> Any:
    return tree.parse(text, file="f").plain()


def test_it_is_a_valid_schema_of_draft_2020_12() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_it_accepts_every_shipped_spec(checkout: Path) -> None:
    specs = sorted((checkout / "dags" / "specs").glob("*.yaml"))
    assert {"byte_gpt_demo.yaml", "llama_8b.yaml"} <= {each.name for each in specs}
    for each in specs:
        VALIDATOR.validate(plain(each.read_text()))
    for name in reference.EXAMPLES:
        VALIDATOR.validate(plain(reference.example(name)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch.sequence_length": "8Ki tokens", "batch.global_batch": "4Mi tokens"},
        {"batch.schedule": [{"from": 0}, {"from": "2 tokens"}]},
        {"budget": {"tokens": "1.5T tokens", "deadline": "1d12h", "max_usd": "$ 12.50"}},
        {"objective": "cost", "parallelism": "auto"},
        {"parallelism": {"tp": 1}, "data.held_out": "5 %", "data.max_size": None},
        {"launcher.grace": "1.5min", "data.shard_size": "80 GiB"},
        {"model": {"shape": {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "vocab_size": 9}}},
    ],
)
def test_it_accepts_what_the_loader_accepts(changes) -> None:
    assert errors_of(changes) == {}
    VALIDATOR.validate(small(changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"stag": "sft"},
        {"stage": "pretraining"},
        {"model": "gpt-5"},
        {"objective": "speed"},
        {"parallelism": "none"},
        {"data.held_out": 5},
        {"data.shard_size": "80 gigs"},
        {"budget.deadline": "36 hours"},
        {"batch.global_batch": 32},
        {"batch.schedule": [{}]},
        {"version": 2},
        {"name": ""},
        {"parallelism": {"tp": 0}},
    ],
)
def test_it_refuses_what_the_loader_refuses(changes) -> None:
    assert errors_of(changes)
    assert not VALIDATOR.is_valid(small(changes))


def test_defaults_are_shown_as_a_spec_would_write_them() -> None:
    data = SCHEMA["$defs"]["DataBlock"]["properties"]
    assert data["shard_size"]["default"] == "4MiB"
    assert data["held_out"]["default"] == "5%"
    assert SCHEMA["$defs"]["LauncherBlock"]["properties"]["start_limit"]["default"] == "2min"
    assert "default" not in data["kind"]


def test_every_written_default_passes_its_own_schema() -> None:
    for name, definition in SCHEMA["$defs"].items():
        for key, prop in definition["properties"].items():
            if "default" in prop:
                assert jsonschema.Draft202012Validator({**prop, "$defs": SCHEMA["$defs"]}).is_valid(prop["default"]), (
                    name,
                    key,
                )


def test_editors_can_complete_words_and_show_meanings() -> None:
    assert SCHEMA["properties"]["model"]["anyOf"][0]["enum"] == list(presets.names())
    assert SCHEMA["$defs"]["DataBlock"]["properties"]["kind"]["enum"] == ["python_stdlib", "files"]
    for definition in [SCHEMA, *SCHEMA["$defs"].values()]:
        for key, prop in definition["properties"].items():
            assert prop.get("description") or "$ref" in prop or "title" in prop, key


def test_blocks_are_listed_once_from_the_top() -> None:
    names = [block.__name__ for block in json_schema.blocks()]
    assert names[0] == "SpecModel"
    assert len(names) == len(set(names)) == len(SCHEMA["$defs"]) + 1


def test_a_spec_as_written_by_a_yaml_tool_still_validates() -> None:
    VALIDATOR.validate(yaml.safe_load(yaml.safe_dump(SMALL)))
