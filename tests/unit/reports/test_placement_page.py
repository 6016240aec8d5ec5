from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.reports.placement_page import PlacedGang, render, write
from tests.support.history import plan
from tests.unit.planner.contention.test_loads import RING, on
from tests.unit.planner.graphs.test_cluster_graph import tree

GANG = PlacedGang(name="<run> A", plan=replace(plan(), placement=on(0, 1, 2, 3)), job=RING)


def test_the_page_names_gangs_and_what_they_do_to_each_other_with_text_escaped() -> None:
    page = render(tree(), [GANG], ["B on the link of node <n0> slows A by 7.0%"])
    assert "&lt;run&gt; A" in page
    assert "&lt;n0&gt; slows A by 7.0%" in page
    assert 'data-figure="where"' in page
    assert 'data-figure="traffic0"' in page
    assert "http" not in page.split("<main>")[1].split("</main>")[0]


def test_peace_is_said_too() -> None:
    assert "No gang slows another" in render(tree(), [GANG], [])


def test_a_page_that_cannot_be_written_is_an_error(tmp_path) -> None:
    write(tree(), [GANG], [], tmp_path / "new" / "page.html")
    with pytest.raises(SpecError, match="cannot be written"):
        write(tree(), [GANG], [], tmp_path / "new" / "page.html" / "below")
