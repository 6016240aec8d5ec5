"""A tree of nodes added up by domain, for people: tables, figures and the command line draw it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_llmsched.domain.topology import TopologyNode, TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One domain, by its path; the whole has an empty one. ``nodes`` are those of an innermost domain only."""

    path: tuple[str, ...]
    num_nodes: int
    num_slots: int
    num_free_slots: int
    num_unusable: int
    domains: tuple[Domain, ...] = ()
    nodes: tuple[TopologyNode, ...] = ()

    @property
    def name(self) -> str:
        """What the domain is called among its neighbours."""
        return self.path[-1] if self.path else ""

    def walk(self) -> Iterator[Domain]:
        """Yield this domain and all within it, each before those inside it."""
        yield self
        for domain in self.domains:
            yield from domain.walk()


def summarise(tree: TopologyTree) -> Domain:
    """Return all nodes as one domain, with the domains of each level inside, sorted by their names: b2 before b10.

    Slots that are free on a node that must not be used count as taken: nobody can have them.
    """
    nodes = sorted(tree.nodes, key=lambda node: ([_counted(part) for part in node.path], _counted(node.id)))
    return _domain((), nodes, depth=len(tree.levels))


def _counted(name: str) -> list[str | int]:
    """Return what sorts a name by the numbers in it: texts and numbers take turns."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"([0-9]{1,18})", name))]


def _domain(path: tuple[str, ...], nodes: list[TopologyNode], *, depth: int) -> Domain:
    inside: dict[str, list[TopologyNode]] = {}
    if len(path) < depth:
        for node in nodes:
            inside.setdefault(node.path[len(path)], []).append(node)
    return Domain(
        path=path,
        num_nodes=len(nodes),
        num_slots=sum(node.num_slots for node in nodes),
        num_free_slots=sum(node.usable_slots for node in nodes),
        num_unusable=sum(node.unusable_reason is not None for node in nodes),
        domains=tuple(_domain((*path, name), part, depth=depth) for name, part in inside.items()),
        nodes=tuple(nodes) if len(path) == depth else (),
    )
