"""How a cluster's nodes hang together, from any form Slurm has for it. Pure; contradictions are refused with the line.

Forms: ``scontrol show topology`` (tree and block), topology.conf and topology.yaml (tree, block, flat). Switches of a
tree are levels ``switch1``, ``switch0`` and so on, 0 being Slurm's own number for the leaves; blocks are the level
``block``, below levels such as ``block16`` for the larger sizes (in nodes) that they are joined to.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.topology.nodelist import expand
from airflow_llmsched.topology.reading import Machines, Network, Oddities, Reading, bounded, hung, quoted, refusal

_MAX_DEPTH = 32
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\S*)")
_KEYS = frozenset(
    (
        "switchname",
        "switches",
        "nodes",
        "level",
        "linkspeed",
        "blockname",
        "aggregatedblock",
        "blocksize",
        "blocksizes",
        "blockindex",
    )
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One switch or block, and the line (or place) that says so."""

    name: str
    nodes: tuple[str, ...]
    children: tuple[str, ...]
    where: str

    @property
    def there(self) -> str:
        """How an error about another entry names this one."""
        return self.where.removeprefix("topology: ")


def read_slurm(text: str, *, name: str | None = None, machines: Machines | None = None) -> Reading:
    """Return the tree of the nodes that ``text`` names, all free, and what was odd. As :func:`network_of` for the rest.

    ``machines`` says what the nodes are, of which Slurm's file does not speak. Raises ``DataError``.
    """
    odd = Oddities()
    network = network_of(text, name=name, odd=odd)
    return Reading(tree=hung(network, machines or Machines()), warnings=odd.counted())


def network_of(text: str, *, name: str | None = None, odd: Oddities | None = None) -> Network:
    """Return the network that ``text`` describes, in whichever of the forms; without text every node is on its own.

    ``name`` is the topology meant where a topology.yaml has several; else its default, or first, one. Raises
    ``DataError``.
    """
    odd = Oddities() if odd is None else odd
    lines = list(_lines(bounded(text, source="topology")))
    if not lines:
        return Network()
    if "=" not in lines[0][1]:
        return _from_yaml(text, name, odd)
    return _from_pairs(lines, odd)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines with their numbers: comments and blanks left out, continued ones joined."""
    start, joined = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.partition("#")[0].strip()
        start = start if joined else number
        if bare.endswith("\\"):
            joined += bare[:-1] + " "
            continue
        if joined + bare:
            yield start, (joined + bare).strip()
        joined = ""
    if joined.strip():
        yield start, joined.strip()


def _from_pairs(lines: Sequence[tuple[int, str]], odd: Oddities) -> Network:
    switches: list[_Entry] = []
    blocks: list[_Entry] = []
    joined: list[tuple[int, _Entry]] = []
    sizes: list[int] = []
    for number, line in lines:
        said = {match[1].lower(): match[2] for match in _PAIR.finditer(line)}
        where = f"topology: line {number} ({line[:100]})"
        odd.note("unknown key", len(said.keys() - _KEYS))
        if "switchname" in said:
            switches.append(_entry(said["switchname"], said, where))
        elif "aggregatedblock" in said:
            joined.append((_number(said.get("blocksize", ""), where), _entry(said["aggregatedblock"], said, where)))
        elif "blockname" in said:
            blocks.append(_entry(said["blockname"], said, where))
        elif "blocksizes" in said:
            sizes = [_number(size, where) for size in said["blocksizes"].split(",")]
        else:
            raise refusal(where, "names neither a switch nor a block", hint="Other kinds are not understood")
    if switches and (blocks or joined or sizes):
        hint = "A cluster has one kind: leave out the other"
        raise refusal(switches[0].where, "names a switch, but other lines name blocks", hint=hint)
    if switches:
        return _tree(switches, odd)
    odd.note("block without nodes", sum(not block.nodes for block in blocks))
    return _told_blocks(blocks, joined) if joined else _blocks(blocks, sizes)


def _entry(name: str, said: Mapping[str, str], where: str) -> _Entry:
    try:
        return _Entry(name, expand(said.get("nodes", "")), expand(said.get("switches", "")), where)
    except ValueError as error:
        raise refusal(where, str(error), hint="Write nodes as Slurm does: n[1-4],m7") from error


def _number(text: object, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,6}", str(text)):
        raise refusal(where, f"{str(text)[:40]!r} is no number of nodes", hint="A block's size is 1 or more")
    return int(str(text))


def _tree(entries: Sequence[_Entry], odd: Oddities) -> Network:
    by_name = _unique(entries)
    parents: dict[str, str] = {}
    for entry in entries:
        for child in entry.children:
            if child not in by_name:
                raise refusal(entry.where, f"there is no switch {child!r}", hint="Add a line for it")
            if child in parents:
                other = by_name[parents[child]].there
                raise refusal(
                    entry.where, f"switch {child!r} hangs below another already: {other}", hint="Keep one of them"
                )
            parents[child] = entry.name
    heights = {entry.name: _height(entry, by_name, 0) for entry in entries}
    for entry in entries:
        _check_nodes_above(entry, by_name)
    depth = max(heights.values()) + 1
    leaves = [entry for entry in entries if not entry.children]
    odd.note("switch without nodes", sum(not leaf.nodes for leaf in leaves))
    paths = {node: _upward(leaf.name, parents, heights, depth) for leaf in leaves for node in leaf.nodes}
    _refuse_doubles(leaves)
    return Network(levels=tuple(f"switch{level}" for level in reversed(range(depth))), paths=paths)


def _unique(entries: Sequence[_Entry]) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    for entry in entries:
        if entry.name in found:
            raise refusal(
                entry.where, f"{entry.name!r} is there already: {found[entry.name].there}", hint="Keep one of them"
            )
        found[entry.name] = entry
    return found


def _height(entry: _Entry, by_name: Mapping[str, _Entry], depth: int) -> int:
    """Return how many levels are below a switch. Raises ``DataError`` when it hangs below itself."""
    if depth > _MAX_DEPTH:
        what = f"switch {entry.name!r} hangs below itself, or {_MAX_DEPTH} deep"
        raise refusal(entry.where, what, hint="Follow its switches and take one link out")
    return max((1 + _height(by_name[child], by_name, depth + 1) for child in entry.children), default=0)


def _check_nodes_above(entry: _Entry, by_name: Mapping[str, _Entry]) -> None:
    """``scontrol`` lists the nodes below a switch of switches as well; they must be those of its children."""
    if not entry.children or not entry.nodes:
        return
    below = {node for leaf in _leaves(entry, by_name) for node in leaf.nodes}
    astray = sorted(below.symmetric_difference(entry.nodes))
    if astray:
        what = f"its nodes are not those of its switches: {', '.join(astray[:5])}"
        raise refusal(entry.where, what, hint="Leave out the nodes of switches that have switches")


def _leaves(entry: _Entry, by_name: Mapping[str, _Entry]) -> Iterator[_Entry]:
    if not entry.children:
        yield entry
    for child in entry.children:
        yield from _leaves(by_name[child], by_name)


def _upward(leaf: str, parents: Mapping[str, str], heights: Mapping[str, int], depth: int) -> tuple[str, ...]:
    """Return a leaf's path, outermost first. A level that it skips has the name of the switch below."""
    path = [leaf]
    while len(path) < depth:
        above = parents.get(path[-1])
        path.append(above if above is not None and heights[above] == len(path) else path[-1])
    return tuple(reversed(path))


def _refuse_doubles(entries: Sequence[_Entry]) -> None:
    seen: dict[str, _Entry] = {}
    for entry in entries:
        for node in entry.nodes:
            if node in seen and seen[node] is not entry:
                what = f"node {node!r} is elsewhere already: {seen[node].there}"
                raise refusal(entry.where, what, hint="A node hangs in one place: keep one of them")
            seen[node] = entry


def _blocks(blocks: Sequence[_Entry], sizes: Sequence[int]) -> Network:
    """Join blocks in their order: the first size is a block's, each further one a multiple of it in nodes."""
    _unique(blocks)
    _refuse_doubles(blocks)
    for small, large in itertools.pairwise(sizes):
        if large <= small or large % small:
            what = f"block size {large} is no multiple of {small}"
            raise refusal("topology: BlockSizes", what, hint="Each size joins whole blocks of the one before")
    larger = sizes[1:]
    paths: dict[str, tuple[str, ...]] = {}
    for index, block in enumerate(blocks):
        groups = [blocks[index - index % (size // sizes[0])].name for size in larger]
        paths |= dict.fromkeys(block.nodes, (*reversed(groups), block.name))
    return Network(levels=(*(f"block{size}" for size in reversed(larger)), "block"), paths=paths)


def _told_blocks(blocks: Sequence[_Entry], joined: Sequence[tuple[int, _Entry]]) -> Network:
    """Take joined blocks as ``scontrol`` tells them, largest outside."""
    _unique(blocks)
    _refuse_doubles(blocks)
    levels: list[tuple[int, dict[str, str]]] = []
    for size, group in itertools.groupby(sorted(joined, key=lambda each: -each[0]), key=lambda each: each[0]):
        entries = [entry for _, entry in group]
        _refuse_doubles(entries)
        levels.append((size, {node: entry.name for entry in entries for node in entry.nodes}))
    paths = {
        node: (*(holders.get(node, block.name) for _, holders in levels), block.name)
        for block in blocks
        for node in block.nodes
    }
    for _, entry in joined:
        stray = next((node for node in entry.nodes if node not in paths), None)
        if stray is not None:
            what = f"node {stray!r} is in none of the blocks"
            raise refusal(entry.where, what, hint="Add it to a block, or leave it out here")
    return Network(levels=(*(f"block{size}" for size, _ in levels), "block"), paths=paths)


def _from_yaml(text: str, name: str | None, odd: Oddities) -> Network:
    topologies = _load(text)
    if not isinstance(topologies, list) or not all(isinstance(each, dict) for each in topologies):
        raise refusal("topology.yaml", "must be a list of topologies", hint="Begin each with '- topology: NAME'")
    known = [str(each.get("topology"))[:100] for each in topologies]
    if name is not None:
        wanted = [each for each in topologies if str(each.get("topology")) == name]
    else:
        wanted = [each for each in topologies if each.get("cluster_default") is True] or topologies
    if not wanted:
        hint = f"It has {', '.join(known) or 'none'}"
        raise refusal("topology.yaml", f"has no topology {'at all' if name is None else quoted(name)}", hint=hint)
    return _of_yaml(wanted[0], odd)


def _load(text: str) -> Any:
    import yaml  # noqa: PLC0415  (a tenth of a second that clusters without such a file do not pay)

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
                line = 0 if event.start_mark is None else event.start_mark.line + 1
                where = f"topology.yaml: line {line}"
                raise refusal(where, f"has an alias, or is nested deeper than {_MAX_DEPTH}", hint="Write it out")
        return yaml.load(text, Loader=loader)  # noqa: S506  (a safe loader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date that is none
        raise refusal("topology.yaml", f"cannot be read: {str(error)[:300]}", hint="Mend the YAML") from error


def _of_yaml(topology: Mapping[str, Any], odd: Oddities) -> Network:
    where = f"topology.yaml: topology {quoted(str(topology.get('topology')))}"
    try:
        if topology.get("flat"):
            return Network()
        if "tree" in topology:
            return _tree([_yaml_entry(each, "switch", where) for each in topology["tree"]["switches"]], odd)
        if "block" in topology:
            block = topology["block"]
            sizes = [_number(size, where) for size in block.get("block_sizes") or ()]
            blocks = [_yaml_entry(each, "block", where) for each in block["blocks"]]
            odd.note("block without nodes", sum(not each.nodes for each in blocks))
            return _blocks(blocks, sizes)
    except (KeyError, TypeError, AttributeError) as error:
        raise refusal(where, f"is not of its form: {error!r}", hint="See Slurm's topology.yaml(5)") from error
    raise refusal(where, "is neither tree nor block nor flat", hint="No other kind is understood")


def _yaml_entry(each: Mapping[str, Any], kind: str, where: str) -> _Entry:
    said = {"name": each[kind], "nodes": each.get("nodes") or "", "switches": each.get("children") or ""}
    wrong = next((key for key, value in said.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise TypeError(f"{wrong} of a {kind} must be a text")
    return _entry(said["name"], said, f"{where}, {kind} {quoted(said['name'])}")
