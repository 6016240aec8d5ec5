from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.reports import topology_figures
from airflow_llmsched.reports.topology_figures import COLOURS, domains, figures
from airflow_llmsched.topology.reading import Machines, Network, hung

TREE = hung(
    Network(levels=("block", "rack"), paths={f"n{number}": ("b<1>", f"r{number // 2}") for number in range(4)}),
    Machines(shape="dgx-h100"),
)


def test_every_domain_and_node_is_a_box_as_wide_as_its_slots() -> None:
    broken = replace(TREE.nodes[0], unusable_reason="a <fan>")
    [icicle] = domains(replace(TREE, nodes=(broken, *TREE.nodes[1:]))).data
    told = dict(
        zip(icicle.ids, zip(icicle.parents, icicle.labels, icicle.values, icicle.customdata, strict=True), strict=True)
    )
    labels = [label for _, label, _, _ in told.values()]
    assert labels == ["all", "b&lt;1&gt;", "r0", "n0", "n1", "r1", "n2", "n3"]
    for number, (parent, *_) in told.items():
        assert parent in {*told, ""}
        inside = [value for its_parent, _, value, _ in told.values() if its_parent == number]
        assert not inside or sum(inside) == told[number][2]
    assert icicle.marker.colors[3] == 0, "nobody can have the slots of a broken node"
    assert "not usable: a &lt;fan&gt;" in icicle.customdata[3][0]
    assert "1 of them not usable" in icicle.customdata[0][0]
    assert [colour for _, colour in icicle.marker.colorscale] == list(COLOURS)


@pytest.mark.parametrize(("most", "labels"), [(7, 4), (3, 2), (1, 2), (8, 8)])
def test_inner_levels_are_left_out_where_boxes_get_too_many(
    most: int, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_figures, "MAX_BOXES", most)
    [icicle] = domains(TREE).data
    assert len(icicle.labels) == labels
    assert icicle.values[0] == 32


def test_nodes_without_slots_have_no_figure_alone_and_a_place_beside_others() -> None:
    bare = [replace(node, num_slots=0, num_free_slots=0) for node in TREE.nodes]
    assert figures(replace(TREE, nodes=tuple(bare))) == {}
    assert len(figures(replace(TREE, nodes=(*bare[:1], *TREE.nodes[1:])))["domains"].data[0].labels) == 8
