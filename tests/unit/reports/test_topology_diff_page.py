from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.reports import topology_diff_page
from airflow_llmsched.topology.reading import Machines, Network, hung

TREE = hung(
    Network(levels=("block",), paths={f"n{number}": ("b<1>",) for number in range(4)}), Machines(shape="dgx-h100")
)
NAMES = ("a & b.yaml", "<c>")


def test_a_page_has_a_figure_and_what_differs_of_the_whole_and_of_nodes() -> None:
    broken = replace(TREE.nodes[0], unusable_reason="a <fan>")
    after = replace(TREE, nodes=(broken, *TREE.nodes[1:]), switches_reduce=True)
    text = topology_diff_page.render(TREE, after, names=NAMES)
    assert "before <code>a &amp; b.yaml</code>" in text
    assert "after <code>&lt;c&gt;</code>" in text
    assert '<td>switches reduce</td><td class="long">false</td><td class="long">true</td>' in text
    assert '<td class="long">b&lt;1&gt;: dgx-h100, 8 of 8 free, a &lt;fan&gt;</td>' in text
    assert text.count('class="plot"') == 1
    assert "a <fan>" not in text
    assert "Both tell the same" not in text


def test_a_page_of_two_that_are_alike_says_so() -> None:
    assert "Both tell the same." in topology_diff_page.render(TREE, TREE, names=NAMES)


def test_long_tables_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_diff_page, "MAX_ROWS", 2)
    assert "The first 2 of 4." in topology_diff_page.render(replace(TREE, nodes=()), TREE, names=NAMES)


def test_a_page_is_written_or_the_reason_told(tmp_path: Path) -> None:
    topology_diff_page.write(TREE, TREE, tmp_path / "page.html", names=NAMES)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be written"):
        topology_diff_page.write(TREE, TREE, tmp_path / "file" / "page.html", names=NAMES)
