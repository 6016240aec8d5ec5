from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.errors import SpecError
from airflow_llmsched.reports import topology_page
from airflow_llmsched.topology.reading import Machines, Network, hung

TREE = hung(
    Network(
        levels=("block", "rack"),
        paths={f"n{number}": ("b<1>", f"r{number // 2}") for number in range(4)},
        scale_up_level="rack",
        links=(NetworkLevel(level="block", bandwidth_bytes_per_s=2.5e10, is_measured=True),),
    ),
    Machines(shape="dgx-h100"),
)


def test_a_page_has_domains_links_oddities_and_what_cannot_be_used() -> None:
    broken = replace(TREE.nodes[0], unusable_reason="a <fan>")
    text = topology_page.render(
        replace(TREE, nodes=(broken, *TREE.nodes[1:]), switches_reduce=True),
        source="fleet & co.yaml",
        warnings={"odd <thing>": 1200},
    )
    assert "from <code>fleet &amp; co.yaml</code>" in text
    assert "1,200 &times; odd &lt;thing&gt;" in text
    assert '<td class="long">b&lt;1&gt; / r0</td>' in text
    assert "<td>25 GB/s, measured</td>" in text
    assert '<td class="long">a &lt;fan&gt;</td>' in text
    assert "within each rack" in text
    assert "switches add up (SHARP)" in text
    assert text.count('class="plot"') == 1


def test_long_tables_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_page, "MAX_ROWS", 2)
    assert "The first 2 of 3." in topology_page.render(TREE, source="x", warnings={})


def test_a_page_is_written_or_the_reason_told(tmp_path: Path) -> None:
    topology_page.write(TREE, tmp_path / "page.html", source="x", warnings={})
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be written"):
        topology_page.write(TREE, tmp_path / "file" / "page.html", source="x", warnings={})
