"""How ``llmsched topology`` words what it shows: trees, tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.topology import NetworkLevel, TopologyNode, TopologyTree
from airflow_llmsched.planner.links import check_words
from airflow_llmsched.topology.comparison import Comparison, NodeChange, link_words, terms_words, words_of
from airflow_llmsched.topology.summary import Domain, summarise

MAX_NODES_LISTED = 64
"""Beyond that many nodes only domains are drawn, unless every node is asked for."""

MAX_CHILDREN = 48
MAX_CHANGES = 200


def domains(tree: TopologyTree, *, with_nodes: bool) -> Tree:
    """Return the domains of a tree with what is free in each, and its nodes where there are few or all are wanted."""
    whole = summarise(tree)
    lists_nodes = with_nodes or whole.num_nodes <= MAX_NODES_LISTED
    drawn = Tree(_line(f"levels: {' > '.join(tree.levels)}", whole))
    _grow(drawn, whole, lists_nodes=lists_nodes, most=None if with_nodes else MAX_CHILDREN)
    return drawn


def _grow(drawn: Tree, domain: Domain, *, lists_nodes: bool, most: int | None) -> None:
    for inner in domain.domains[:most]:
        branch = drawn.add(_line(inner.name, inner))
        _grow(branch, inner, lists_nodes=lists_nodes, most=most)
    if lists_nodes:
        for node in domain.nodes[:most]:
            drawn.add(_node_line(node))
    left_out = len(domain.domains[most:]) if most is not None else 0
    left_out += len(domain.nodes[most:]) if most is not None and lists_nodes else 0
    if left_out:
        drawn.add(Text(f"and {left_out:,} more: --nodes lists all", style="dim"))


def _line(name: str, domain: Domain) -> Text:
    # Text, not str: square brackets in a name are not markup
    nodes = "1 node" if domain.num_nodes == 1 else f"{domain.num_nodes:,} nodes"
    told = f"  {nodes}, {domain.num_free_slots:,} of {domain.num_slots:,} slots free"
    text = Text(_plain(name), style="bold")
    text.append(told, style="not bold")
    if domain.num_unusable:
        text.append(f", {domain.num_unusable:,} not usable", style="not bold red")
    return text


def _node_line(node: TopologyNode) -> Text:
    text = Text(
        _plain(f"{node.id}  {node.usable_slots} of {node.num_slots} free, {node.shape}{terms_words(node.terms)}")
    )
    if node.unusable_reason:
        text.append(_plain(f", not usable: {node.unusable_reason}"), style="red")
    return text


def checked(by_shape: Mapping[str, Sequence[NetworkLevel]]) -> str:
    """Return what checks of nodes measured of links, a line for each level and shape of nodes."""
    told = [f"  {shape}: {check_words(link)}" for shape, links in by_shape.items() for link in links]
    return "\n".join(map(_plain, ("links as checks of nodes measured them, which plans there go by:", *told)))


def links(tree: TopologyTree) -> str:
    """Return what is known of the network's links, a line for each level."""
    told = [f"{'all nodes' if link.level is None else link.level}: {link_words(link)}" for link in tree.network]
    lines = (
        ["links, one way and of each slot when all use them:", *(f"  {_plain(each)}" for each in told)] if told else []
    )
    joined = f"within each {tree.scale_up_level}" if tree.scale_up_level else "within each node"
    lines.append(_plain(f"fastest links: {joined}"))
    if tree.switches_reduce:
        lines.append("switches add up (SHARP)")
    if tree.facts.num_rails > 1:
        lines.append(f"{tree.facts.num_rails} rails")
    if tree.facts.transport is not None:
        lines.append(f"moved by: {tree.facts.transport}")
    if tree.facts.serves_collectives_first:
        lines.append("collectives have a class of their own")
    return "\n".join(lines)


def node_links(node: NodeTopology) -> Table:
    """Return a table of a node's accelerators: processors and cards beside each, and who is joined by NVLink."""
    table = Table(title=f"{len(node.gpus)} GPUs, {len(node.nics)} network cards", title_justify="left")
    for heading in ("GPU", "NUMA node", "processors", "nearest cards", "NVLinks"):
        table.add_column(heading, overflow="fold")
    for gpu in node.gpus:
        cpus = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in gpu.cpus)
        near = node.nearest_nics(gpu.index)
        path = node.nic_links[gpu.index][near[0]].path.value if near else ""
        joined = [
            f"{other.index}: {count}" for other in node.gpus if (count := node.num_nvlinks(gpu.index, other.index))
        ]
        cards = f"{', '.join(near)} ({path})" if near else ""
        numa = "" if gpu.numa_index is None else str(gpu.numa_index)
        table.add_row(*map(Text, (str(gpu.index), numa, cpus, _plain(cards), ", ".join(joined))))
    return table


def differences(comparison: Comparison) -> Iterator[Table | Text]:
    """Yield what differs, each kind in a table of its own."""
    if comparison.facts:
        table = Table("what", "before", "after", title="The whole", title_justify="left")
        for row in comparison.facts:
            table.add_row(*(Text(_plain(cell)) for cell in row))
        yield table
    for title, changes in (
        ("added", comparison.added),
        ("gone", comparison.gone),
        ("moved", comparison.moved),
        ("changed", comparison.changed),
    ):
        if changes:
            yield _changes(f"{len(changes):,} nodes {title}", changes)


def _changes(title: str, changes: tuple[NodeChange, ...]) -> Table:
    table = Table("node", "before", "after", title=title, title_justify="left")
    if len(changes) > MAX_CHANGES:
        table.caption = f"and {len(changes) - MAX_CHANGES:,} more"
    for each in changes[:MAX_CHANGES]:
        table.add_row(*(Text(_plain(cell)) for cell in (each.id, _told(each.before), _told(each.after))))
    return table


def _told(node: TopologyNode | None) -> str:
    return "" if node is None else f"{' / '.join(node.path)}: {words_of(node)}"


def _plain(text: str) -> str:
    """Return a text in which nothing steers a terminal: names may hold anything."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
