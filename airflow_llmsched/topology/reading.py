"""What readers have in common: their result, what they refuse, and the way from places of nodes to a tree. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NetworkFacts, NetworkLevel, TopologyNode, TopologyTree
from airflow_llmsched.errors import DataError
from airflow_llmsched.planner.perf.hardware import node_shapes

MAX_TEXT = 256 * 1024 * 1024
"""Most characters of one source: JSON of nodes and pods is the longest, some 10 KB for each."""

MAX_NODES = 131_072

MAX_SLOTS = 4_096
"""Most of one node: no machine has as many accelerators, or parts of them."""

HOST_LEVEL = "host"
"""Level of a source that says nothing of its network: each node is a domain of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A tree, and what was odd about its source: how often, by what it was. Contradictions are never warnings."""

    tree: TopologyTree
    warnings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What nodes are that a source only names. ``num_slots`` None: as many as the shape has, 1 where it is unknown."""

    shape: str = "host"
    num_slots: int | None = None

    def __post_init__(self) -> None:
        """Refuse nodes without slots."""
        if self.num_slots is not None and self.num_slots < 1:
            raise ValueError(f"a node has at least one slot, not {self.num_slots}")

    @property
    def slots(self) -> int:
        """Accelerators of each node."""
        return num_accelerators(self.shape) or 1 if self.num_slots is None else self.num_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Levels, outermost first, and each node's path through them. A node without a path hangs on its own.

    The rest is as :class:`TopologyTree` has it.
    """

    levels: tuple[str, ...] = (HOST_LEVEL,)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scale_up_level: str | None = None
    links: tuple[NetworkLevel, ...] = ()
    facts: NetworkFacts = AS_SHAPES_SAY

    def path_of(self, node: str) -> tuple[str, ...]:
        """Return the domains that hold ``node``, outermost first."""
        return self.paths.get(node) or (node,) * len(self.levels)


class Oddities:
    """Counts what a reader passes over. What is counted is named without names: there are few kinds, however long."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, what: str, count: int = 1) -> None:
        """Count something odd."""
        if count:
            self._counts[what] += count

    def counted(self) -> dict[str, int]:
        """Return how often what was met, in the order of the words."""
        return dict(sorted(self._counts.items()))


def refusal(where: str, what: str, *, hint: str) -> DataError:
    """Return the error for a contradiction: ``where`` it is, ``what`` it is, and what to do about it."""
    return DataError(f"{where}: {what}. {hint}")


def bounded(text: str, *, source: str) -> str:
    """Return ``text`` unless it is longer than any real source. Raises ``DataError``."""
    if len(text) > MAX_TEXT:
        raise refusal(source, f"is {len(text)} characters long, and at most {MAX_TEXT} are read", hint="Cut it down")
    return text


def quoted(text: str) -> str:
    """Return a line or name as messages show it."""
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def short_name(name: str) -> str:
    """Return a host's name without its domain; an address stays whole."""
    return name if re.fullmatch(r"[0-9.]+|.*:.*", name) else name.partition(".")[0]


def num_accelerators(shape: str) -> int | None:
    """Return how many a node of a shape has that the planner knows, else None."""
    known = node_shapes().get(shape)
    return None if known is None else known.num_accelerators


def hung(network: Network, machines: Machines) -> TopologyTree:
    """Return the tree of a network's nodes, all of them free."""
    num_slots = machines.slots
    return tree_of(
        network,
        [
            TopologyNode(
                id=NodeId(name), path=path, shape=machines.shape, num_slots=num_slots, num_free_slots=num_slots
            )
            for name, path in network.paths.items()
        ],
    )


def tree_of(network: Network, nodes: list[TopologyNode]) -> TopologyTree:
    """Return the tree of nodes that have their paths, the same whatever order they come in. Raises ``DataError``."""
    if len(nodes) > MAX_NODES:
        raise refusal("topology", f"has {len(nodes)} nodes, and at most {MAX_NODES} are read", hint="Split it")
    crowded = next((each for each in nodes if each.num_slots > MAX_SLOTS), None)
    if crowded is not None:
        what = f"node {quoted(crowded.id)} has {crowded.num_slots} slots, and at most {MAX_SLOTS} are read"
        raise refusal("topology", what, hint="Mend its slots")
    return TopologyTree(
        levels=network.levels,
        nodes=tuple(sorted(nodes, key=lambda each: (each.path, each.id))),
        scale_up_level=network.scale_up_level,
        network=network.links,
        facts=network.facts,
    )
