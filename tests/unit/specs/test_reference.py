"""The reference page is in step with the schema, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_llmsched.specs import json_schema, loader, presets, reference
from airflow_llmsched.specs.validate import fields_of


def test_the_page_in_the_docs_is_what_the_schema_says_now(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "spec.md").read_text()
    assert page == reference.markdown(), "run: llmsched schema --markdown > docs/reference/spec.md"


def test_every_key_of_every_block_has_a_row() -> None:
    page = reference.markdown()
    for block in json_schema.blocks():
        for key in fields_of(block):
            assert f"| `{key}` |" in page, f"{block.__name__}.{key}"


def test_every_row_says_type_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", reference.markdown(), re.MULTILINE)
    assert len(rows) > 100
    for key, kind, _, meaning in rows:
        assert kind, key
        assert kind != "anything", key
        assert meaning, key


def test_every_preset_is_listed() -> None:
    page = reference.markdown()
    for name in presets.names():
        assert f"| `{name}` | {presets.get(name).num_parameters:,} |" in page


def test_the_examples_of_the_page_load(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "spec.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    transformer, stated = (loader.loads(text) for text in examples)
    assert transformer.model is not None
    assert transformer.model.name == "qwen3-4b"
    assert stated.model is None
    assert {each.group for each in stated.communication} == {"dense", "trainer"}
    assert {each.tier for each in stated.memory} == {"hbm", "host"}
