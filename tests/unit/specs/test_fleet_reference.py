from __future__ import annotations

from pathlib import Path

from airflow_llmsched.specs import fleet_file, fleet_reference
from airflow_llmsched.specs.fleet_schema import FleetModel
from airflow_llmsched.specs.json_schema import blocks
from airflow_llmsched.specs.validate import fields_of


def test_the_page_in_the_docs_is_what_the_schema_says_now(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "fleet.md").read_text()
    assert page == fleet_reference.markdown(), "run: llmsched schema --fleet --markdown > docs/reference/fleet.md"


def test_every_key_of_every_block_has_a_row() -> None:
    page = fleet_reference.markdown()
    for block in blocks(FleetModel):
        for key in fields_of(block):
            assert f"| `{key}` |" in page, f"{block.__name__}.{key}"


def test_the_example_of_the_page_loads() -> None:
    fleet = fleet_file.loads(fleet_reference.example())
    assert [each.name for each in fleet.clusters] == ["campus", "partner"]
    assert set(fleet.clouds) == {"aws"}


def test_the_schema_names_what_is_required() -> None:
    schema = fleet_reference.json_schema()
    assert schema["required"] == ["version"]
    assert schema["$defs"]["ClusterBlock"]["required"] == ["name", "engine"]
    assert schema["$defs"]["ClusterBlock"]["properties"]["silent_after"]["default"] == "2min"
