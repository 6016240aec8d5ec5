"""The reference page is in step with the facts, and every fact is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_llmsched.planner.perf import hardware_page
from airflow_llmsched.planner.perf.hardware import accelerators, fabrics, node_shape, node_shapes


def test_the_page_in_the_docs_is_what_the_facts_say_now(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "hardware.md").read_text()
    assert page == hardware_page.markdown(), "run: llmsched hardware --markdown > docs/reference/hardware.md"


def test_every_accelerator_network_and_shape_has_a_row() -> None:
    named = re.findall(r"^\| `([^`]+)` \|", hardware_page.markdown(), re.MULTILINE)
    assert set(named) == {*accelerators(), *fabrics(), *node_shapes()}


def test_every_row_has_as_many_cells_as_its_heading() -> None:
    for section in hardware_page.markdown().split("\n## ")[1:]:
        widths = {line.count(" | ") for line in section.splitlines() if line.startswith("|")}
        assert len(widths) <= 1, section.splitlines()[0]


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ("h100-sxm", "67 | 494.5 | 989.5 | 989.5 | 1979 | - | 79 | 3350 | 63 | 71-700"),
        ("infiniband-ndr", "switched | 14 | 0.9 | yes | card"),
        ("p4d.24xlarge", "8 x a100-40gb | 8 x 300 | 6.25 | 4 x 12.5, efa1 | 1 | 21.96"),
        ("gb200-nvl72", "4 x gb200 | 72 x 900 | 50 | 4 x 50, infiniband-ndr | 4 | 64.00"),
        ("Standard_ND96asr_v4", "96 | 4 | 900 | 15.75 | 2 | 6 | 1.5 / 0.75 | 0.375"),
    ],
)
def test_a_row_says_what_the_vendor_says(row: str, cells: str) -> None:
    assert f"| `{row}` | {cells} |" in hardware_page.markdown()


@pytest.mark.parametrize("name", sorted(node_shapes()))
def test_every_shape_can_be_described(name: str) -> None:
    said = dict(hardware_page.describe(node_shape(name)))
    assert said["source"] == node_shape(name).source
    assert "level 2" in said
