from __future__ import annotations

from pathlib import Path

from airflow_llmsched.specs import topology_file, topology_reference
from airflow_llmsched.specs.json_schema import blocks
from airflow_llmsched.specs.topology_schema import TopologyModel
from airflow_llmsched.specs.validate import fields_of


def test_the_page_in_the_docs_is_what_the_schema_says_now(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "topology-file.md").read_text()
    hint = "run: llmsched schema --topology --markdown > docs/reference/topology-file.md"
    assert page == topology_reference.markdown(), hint


def test_every_key_of_every_block_has_a_row() -> None:
    page = topology_reference.markdown()
    for block in blocks(TopologyModel):
        for key in fields_of(block):
            assert f"| `{key}` |" in page, f"{block.__name__}.{key}"


def test_the_example_of_the_page_loads() -> None:
    tree = topology_file.loads(topology_reference.example())
    assert (len(tree.nodes), tree.scale_up_level, tree.switches_reduce) == (162, "rack", True)
    assert [len(nodes) for nodes in tree.domains("rack").values()] == [18] * 8 + [1] * 18
    assert tree.nodes[2].unusable_reason == "broken fan"


def test_the_schema_names_what_is_required() -> None:
    schema = topology_reference.json_schema()
    assert schema["required"] == ["version", "levels", "nodes"]
    assert schema["$defs"]["NodesBlock"]["required"] == ["names", "path", "shape"]
