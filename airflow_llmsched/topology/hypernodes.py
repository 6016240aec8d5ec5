"""Volcano's HyperNode objects: tiers of switches above Kubernetes nodes. Pure.

The lower a tier, the nearer are its members (Volcano's documentation of network topology aware scheduling, 2026-11).
Levels are the tiers that are there, the highest outermost, under their ``tierName`` where all of one tier agree on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.fields import Fields, named
from airflow_llmsched.topology.kubernetes import KubeNode, Objects, nodes_of, objects_of, scale_up_level_of
from airflow_llmsched.topology.patterns import compiled
from airflow_llmsched.topology.reading import Network, Oddities, Reading, quoted, refusal, tree_of

_OPERATORS = frozenset(("In", "NotIn", "Exists", "DoesNotExist"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _HyperNode:
    """One HyperNode: its members by name, and where each is said."""

    name: str
    tier: int
    tier_name: str
    nodes: Mapping[str, str]
    hypernodes: Mapping[str, str]


def read_hypernodes(document: object, *, resource: str | None = None) -> Reading:
    """Return the tree of a list of HyperNodes and nodes, and of pods for what is free.

    ``kubectl get nodes,pods,hypernodes -A -o json`` prints one. ``resource`` is as for ``read_kubernetes``. Raises
    ``DataError``.
    """
    odd = Oddities()
    objects = objects_of(document, odd)
    nodes = nodes_of(objects, odd, resource=resource)
    network = network_of(objects, nodes, odd)
    return Reading(
        tree=tree_of(network, [node.at(network.path_of(node.name)) for node in nodes]), warnings=odd.counted()
    )


def network_of(objects: Objects, nodes: Sequence[KubeNode], odd: Oddities) -> Network:
    """Return where HyperNodes put the nodes. Raises ``DataError`` for two parents, cycles and tiers out of order."""
    if not objects.hypernodes:
        raise refusal("Kubernetes objects", "hold no HyperNode", hint="List hypernodes.topology.volcano.sh as well")
    by_name = _read(objects, nodes, odd)
    parent_of = _parents(by_name)
    tiers = sorted({each.tier for each in by_name.values()})
    paths = {node: _upward(holder, parent_of, by_name, tiers) for node, holder in _holders(by_name).items()}
    odd.note("node in no HyperNode", sum(node.name not in paths for node in nodes))
    levels = tuple(_level(tier, by_name.values()) for tier in reversed(tiers))
    return Network(levels=levels, paths=paths, scale_up_level=scale_up_level_of(nodes, paths, levels, odd))


def _read(objects: Objects, nodes: Sequence[KubeNode], odd: Oddities) -> dict[str, _HyperNode]:
    names = {each.child("metadata").text("name", "") for each in objects.hypernodes}
    labels = {node.name: node.labels for node in nodes}
    for each in objects.nodes:  # those without accelerators may be members, too
        labels.setdefault(each.child("metadata").text("name", ""), each.child("metadata").table("labels"))
    found: dict[str, _HyperNode] = {}
    for each in objects.hypernodes:
        name = each.child("metadata").text("name", "")
        if not name or name in found:
            raise each.error("metadata.name", f"{quoted(name)} is missing or there twice", hint="List them anew")
        spec = each.called(named("hypernode", name)).child("spec")
        members: dict[str, dict[str, str]] = {"Node": {}, "HyperNode": {}}
        for member in spec.children("members"):
            kind = member.text("type", "")
            if kind not in members:
                raise member.error("type", f"{quoted(kind)} is neither Node nor HyperNode", hint="Mend the object")
            known = labels if kind == "Node" else {each: {} for each in names}
            matched = [each for each in _matched(member, kind, known) if each in known]
            odd.note(f"member of type {kind} that matches none", not matched)
            members[kind] |= dict.fromkeys(matched, member.where)
        odd.note("HyperNode without members", not any(members.values()))
        found[name] = _HyperNode(
            name=name,
            tier=spec.whole("tier"),
            tier_name=spec.text("tierName", ""),
            nodes=members["Node"],
            hypernodes=members["HyperNode"],
        )
    return found


def _matched(member: Fields, kind: str, known: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    selector = member.child("selector")
    kinds = [name for name in ("exactMatch", "regexMatch", "labelMatch") if name in selector.names]
    if len(kinds) != 1:
        what = f"must hold one of exactMatch, regexMatch and labelMatch, not {' and '.join(kinds) or 'none'}"
        raise member.error("selector", what, hint="Mend the object")
    inner = selector.child(kinds[0])
    if kinds[0] == "exactMatch":
        yield inner.text("name")
    elif kinds[0] == "regexMatch":
        yield from _by_pattern(inner, known)
    elif kind == "HyperNode":
        raise selector.error("labelMatch", "selects nodes only", hint="Name HyperNodes by exactMatch")
    else:
        yield from (name for name, labels in known.items() if _has_labels(inner, labels))


def _by_pattern(inner: Fields, known: Iterable[str]) -> Iterator[str]:
    try:
        pattern = compiled(inner.text("pattern"))
    except ValueError as error:
        raise inner.error("pattern", str(error), hint="Mend the object") from None
    yield from (name for name in known if len(name) <= 253 and pattern.search(name))


def _has_labels(inner: Fields, labels: Mapping[str, str]) -> bool:
    wanted = inner.table("matchLabels")
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(each, labels) for each in inner.children("matchExpressions")
    )


def _holds(each: Fields, labels: Mapping[str, str]) -> bool:
    key, operator, values = each.text("key"), each.text("operator"), each.texts("values")
    if operator not in _OPERATORS:
        raise each.error("operator", f"{quoted(operator)} is none of {', '.join(sorted(_OPERATORS))}")
    if operator in {"Exists", "DoesNotExist"}:
        return (key in labels) is (operator == "Exists")
    return (labels.get(key) in values) is (operator == "In")


def _parents(by_name: Mapping[str, _HyperNode]) -> dict[str, str]:
    """Return each HyperNode's parent. Tiers that rise on every way up leave no room for a cycle."""
    parent_of: dict[str, str] = {}
    for each in by_name.values():
        for child, where in each.hypernodes.items():
            if child in parent_of:
                raise _twice(where, "hypernode", child, parent_of[child])
            if by_name[child].tier >= each.tier:
                what = f"hypernode {quoted(child)} is of tier {by_name[child].tier}, which is not below {each.tier}"
                raise refusal(where, what, hint="A member is of a lower tier; nothing can be a member of itself")
            parent_of[child] = each.name
    return parent_of


def _holders(by_name: Mapping[str, _HyperNode]) -> dict[str, str]:
    """Return the HyperNode that each node is a member of."""
    holder_of: dict[str, str] = {}
    for each in by_name.values():
        for node, where in each.nodes.items():
            if node in holder_of:
                raise _twice(where, "node", node, holder_of[node])
            holder_of[node] = each.name
    return holder_of


def _twice(where: str, kind: str, name: str, holder: str) -> DataError:
    what = f"{kind} {quoted(name)} is a member of hypernode {quoted(holder)} as well"
    return refusal(where, what, hint="Leave it in one of them")


def _upward(
    holder: str, parent_of: Mapping[str, str], by_name: Mapping[str, _HyperNode], tiers: Sequence[int]
) -> tuple[str, ...]:
    """Return a path, outermost first. A tier that is skipped has the name of the HyperNode below, or of the lowest."""
    at_tier = {by_name[holder].tier: holder}
    name = holder
    while name in parent_of:
        name = parent_of[name]
        at_tier[by_name[name].tier] = name
    path: list[str] = []
    for tier in tiers:
        path.append(at_tier.get(tier) or (path[-1] if path else holder))
    return tuple(reversed(path))


def _level(tier: int, every: Iterable[_HyperNode]) -> str:
    names = {each.tier_name for each in every if each.tier == tier}
    name = names.pop() if len(names) == 1 else ""
    return name or f"tier{tier}"
