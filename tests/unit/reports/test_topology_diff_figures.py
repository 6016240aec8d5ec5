from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.reports.topology_diff_figures import COLOURS, Became, figures, together
from airflow_llmsched.topology.comparison import compare
from airflow_llmsched.topology.reading import Machines, Network, hung

TREE = hung(
    Network(levels=("block", "rack"), paths={f"n{number}": ("b", f"r{number // 2}") for number in range(8)}),
    Machines(shape="dgx-h100"),
)
NUMBERS = {became: at / 4 for at, became in enumerate(COLOURS)}


def changed(tree: TopologyTree, name: str, **changes: object) -> TopologyTree:
    nodes = (replace(node, **changes) if node.id == name else node for node in tree.nodes)  # type: ignore[arg-type]
    return replace(tree, nodes=tuple(nodes))


def boxes(before: TopologyTree, after: TopologyTree) -> dict[str, tuple[str, float]]:
    """Return words and colour of each box by its label."""
    [icicle] = figures(before, after, compare(before, after))["changes"].data
    words = (told for (told,) in icicle.customdata)
    return dict(zip(icicle.labels, zip(words, icicle.marker.colors, strict=True), strict=True))


def test_nodes_are_coloured_by_what_became_of_them_and_domains_by_what_is_inside() -> None:
    after = changed(changed(TREE, "n2", num_free_slots=3), "n4", path=("b", "r3"))
    after = replace(after, nodes=tuple(node for node in after.nodes if node.id != "n5"))
    new = replace(TREE.nodes[0], id="n<9>", path=("b", "r9"))
    found = boxes(TREE, replace(after, nodes=(*after.nodes, new)))
    became = {label: next(name for name in Became if NUMBERS[name] == colour) for label, (_, colour) in found.items()}
    assert became == {
        "all": Became.CHANGED, "b": Became.CHANGED, "r0": Became.SAME, "n0": Became.SAME, "n1": Became.SAME,
        "r1": Became.CHANGED, "n2": Became.CHANGED, "n3": Became.SAME, "r2": Became.GONE, "n5": Became.GONE,
        "r3": Became.CHANGED, "n4": Became.MOVED, "n6": Became.SAME, "n7": Became.SAME,
        "r9": Became.ADDED, "n&lt;9&gt;": Became.ADDED,
    }  # fmt: skip
    assert found["b"][0] == "9 nodes: 1 gone, 1 moved, 1 changed, 1 added"
    assert found["n4"][0].endswith("<br>before: b / r2: dgx-h100, 8 of 8 free")
    assert found["r0"][0] == "2 nodes, all the same"


def test_where_levels_differ_the_figure_is_of_what_is_there_after() -> None:
    flat = hung(Network(levels=("row",), paths={"n0": ("a",), "n99": ("a",)}), Machines(shape="dgx-h100"))
    both = together(TREE, flat, compare(TREE, flat))
    assert {node.id for node in both.nodes} == {"n0", "n99"}
    assert NUMBERS[Became.ADDED] == boxes(TREE, flat)["n99"][1]


def test_nodes_without_slots_have_no_figure() -> None:
    bare: list[TopologyNode] = [replace(node, num_slots=0, num_free_slots=0) for node in TREE.nodes]
    tree = replace(TREE, nodes=tuple(bare))
    assert figures(tree, tree, compare(tree, tree)) == {}
