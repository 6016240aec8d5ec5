"""Kubernetes nodes, and pods on them, as ``kubectl get ... -o json`` lists them. Pure.

Levels are those of a Topology object (Kueue's, or KAI's of the same form) where there is one, else the known labels
that nodes carry. A list may hold all kinds at once: ``kubectl get nodes,pods,topologies.kueue.x-k8s.io -A -o json``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.topology.accelerators import INSTANCE_TYPE, RESOURCES, shape_of
from airflow_llmsched.topology.fields import Fields, named
from airflow_llmsched.topology.reading import Network, Oddities, Reading, quoted, refusal, tree_of

HOSTNAME = "kubernetes.io/hostname"
CLIQUE = "nvidia.com/gpu.clique"
ULTRASERVER = "topology.k8s.aws/ultraserver-id"
SUBBLOCK = "cloud.google.com/gce-topology-subblock"

FAMILIES = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "cloud.google.com/gce-topology-block",
    SUBBLOCK,
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    ULTRASERVER,
    CLIQUE,
    "cloud.google.com/gce-topology-host",
)
"""Labels that say where a node is, outermost first."""

_JOINED_MACHINES = "a4x-"
"""Beginning of Google's machine types whose subblock is one NVLink domain (AI Hypercomputer terminology, 2026-01)."""

_ENDED = frozenset(("Succeeded", "Failed"))
_KEEPS_AWAY = frozenset(("NoSchedule", "NoExecute"))
_WITHOUT_LABEL = "node without a label of its topology"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What a list holds, by kind. ``pods`` None: it lists none, and says nothing of what is free."""

    nodes: tuple[Fields, ...] = ()
    pods: tuple[Fields, ...] | None = None
    topologies: tuple[Fields, ...] = ()
    hypernodes: tuple[Fields, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeNode:
    """A node with accelerators. It has no path yet."""

    name: str
    labels: Mapping[str, str]
    shape: str
    num_slots: int
    num_free_slots: int
    unusable_reason: str | None

    def at(self, path: tuple[str, ...], *, unusable_reason: str | None = None) -> TopologyNode:
        """Return the node in its place."""
        return TopologyNode(
            id=NodeId(self.name),
            path=path,
            shape=self.shape,
            num_slots=self.num_slots,
            num_free_slots=self.num_free_slots,
            unusable_reason=self.unusable_reason or unusable_reason,
        )


def read_kubernetes(document: object, *, topology: str | None = None, resource: str | None = None) -> Reading:
    """Return the tree of the nodes with accelerators.

    ``topology`` is the Topology object meant where the list holds several; ``resource`` what alone a slot is, instead
    of the accelerators that are known. Raises ``DataError``.
    """
    odd = Oddities()
    objects = objects_of(document, odd)
    nodes = nodes_of(objects, odd, resource=resource)
    chosen = _topology(objects.topologies, topology)
    if chosen is None:
        levels = tuple(label for label in FAMILIES if any(node.labels.get(label) for node in nodes)) or (HOSTNAME,)
        placed = [node.at(_path(node, levels, odd)) for node in nodes]
    else:
        name, levels = chosen
        placed = [node.at(_path(node, levels, odd), unusable_reason=_stranger(node, levels, name)) for node in nodes]
    paths = {each.name: node.path for each, node in zip(nodes, placed, strict=True) if not _lacks(each, levels)}
    scale_up_level = scale_up_level_of(nodes, paths, levels, odd)
    return Reading(tree=tree_of(Network(levels=levels, scale_up_level=scale_up_level), placed), warnings=odd.counted())


def objects_of(document: object, odd: Oddities) -> Objects:
    """Sort the items of a list, or one object, by kind; others are counted. Raises ``DataError``."""
    top = Fields(document, "Kubernetes objects")
    kind = top.text("kind", "List")
    items = [(top, kind)]
    if kind.endswith("List"):
        items = [(each, each.text("kind", kind.removesuffix("List"))) for each in top.children("items")]
    found: dict[str, list[Fields]] = {"Node": [], "Pod": [], "Topology": [], "HyperNode": []}
    for each, item_kind in items:
        if item_kind in found:
            found[item_kind].append(each)
        else:
            odd.note("object of another kind")
    return Objects(
        nodes=tuple(found["Node"]),
        pods=tuple(found["Pod"]) if found["Pod"] or kind == "PodList" else None,
        topologies=tuple(found["Topology"]),
        hypernodes=tuple(found["HyperNode"]),
    )


def nodes_of(objects: Objects, odd: Oddities, *, resource: str | None = None) -> list[KubeNode]:
    """Return the nodes that offer accelerators, with what pods leave free. Raises ``DataError``."""
    wanted = (resource,) if resource else RESOURCES
    used = _used(objects.pods or (), wanted)
    found: dict[str, KubeNode] = {}
    seen: set[str] = set()
    for each in objects.nodes:
        name = _name(each)
        if name in seen:
            raise refusal(named("node", name), "is listed twice", hint="List the nodes anew")
        seen.add(name)
        node = _node(each, name, wanted, used.get(name, {}), odd)
        if node is not None:
            found[name] = node
    if not seen:
        raise refusal("Kubernetes objects", "lists no node", hint="Print nodes too: kubectl get nodes,pods -A -o json")
    if not found:
        hint = f"Known are {', '.join(RESOURCES)}; name another one (--resource)"
        raise refusal(
            "Kubernetes objects", f"none of {len(seen)} nodes offers {resource or 'an accelerator'}", hint=hint
        )
    if objects.pods is None:
        odd.note("node whose slots all count as free, as no pods are listed", len(found))
    odd.note("pod on a node that is not listed", sum(name not in seen for name in used))
    return list(found.values())


def _name(each: Fields) -> str:
    name = each.child("metadata").text("name", "")
    if not name:
        raise each.error("metadata.name", "is missing")
    return name


def _node(each: Fields, name: str, wanted: Sequence[str], used: Mapping[str, int], odd: Oddities) -> KubeNode | None:
    fields = each.called(named("node", name))
    status = fields.child("status")
    offered = {key: _count(text) for key, text in status.child("allocatable").table_of(wanted).items()}
    odd.note("number of accelerators that is none", sum(count is None for count in offered.values()))
    resource = next((key for key in wanted if offered.get(key)), None)
    if resource is None:
        return None
    num_slots = offered[resource] or 0
    capacity = _count(status.child("capacity").text(resource, "")) or num_slots
    odd.note("node that offers fewer accelerators than it has", capacity > num_slots)
    num_used = used.get(resource, 0)
    odd.note("node whose pods ask for more than it offers", num_used > num_slots)
    labels = fields.child("metadata").table("labels")
    told = _count(labels.get("nvidia.com/gpu.count", ""))
    odd.note("node that offers another number than GPU feature discovery counts", told not in {None, capacity})
    return KubeNode(
        name=name,
        labels=labels,
        shape=shape_of(labels, resource=resource, num_slots=capacity),
        num_slots=num_slots,
        num_free_slots=max(0, num_slots - num_used),
        unusable_reason=_unusable_reason(fields, (*wanted, *RESOURCES)),
    )


def _count(text: str) -> int | None:
    """Read a number of devices; no plugin offers millions of them."""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def _unusable_reason(node: Fields, wanted: Iterable[str]) -> str | None:
    """Say why no pod would be put here. Taints in the name of an accelerator keep away only pods that ask for none."""
    spec = node.child("spec")
    if spec.flag("unschedulable"):
        return "cordoned"
    for condition in node.child("status").children("conditions"):
        if condition.text("type", "") == "Ready" and condition.text("status", "") != "True":
            return f"not ready: {condition.text('reason', '') or condition.text('status', 'unknown')}"
    tolerated = set(wanted)
    for taint in spec.children("taints"):
        key = taint.text("key", "")
        if taint.text("effect", "") in _KEEPS_AWAY and key not in tolerated:
            value = taint.text("value", "")
            return f"tainted: {key}{'=' * bool(value)}{value}:{taint.text('effect', '')}"
    return None


def _used(pods: Iterable[Fields], wanted: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return what live pods ask for, by node and resource."""
    used: dict[str, dict[str, int]] = {}
    for pod in pods:
        spec = pod.child("spec")
        node = spec.text("nodeName", "")
        if not node or pod.child("status").text("phase", "") in _ENDED:
            continue
        asked = used.setdefault(node, {})
        for key, count in _asked_for(spec, wanted).items():
            asked[key] = asked.get(key, 0) + count
    return used


def _asked_for(spec: Fields, wanted: Sequence[str]) -> dict[str, int]:
    """Return a pod's accelerators: of all containers together, or of the hungriest that runs before them."""
    total: dict[str, int] = {}
    for container in spec.children("containers"):
        for key, count in _limits(container, wanted).items():
            total[key] = total.get(key, 0) + count
    for container in spec.children("initContainers"):
        for key, count in _limits(container, wanted).items():
            if container.text("restartPolicy", "") == "Always":  # runs on beside the others
                total[key] = total.get(key, 0) + count
            else:
                total[key] = max(total.get(key, 0), count)
    return total


def _limits(container: Fields, wanted: Sequence[str]) -> dict[str, int]:
    """Requests of devices equal their limits, and may be left out."""
    resources = container.child("resources")
    texts = resources.child("requests").table_of(wanted) | resources.child("limits").table_of(wanted)
    return {key: _count(text) or 0 for key, text in texts.items()}


def _topology(topologies: Sequence[Fields], name: str | None) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and levels of the Topology object that is meant; None where there is none."""
    by_name = {_name(each): each for each in topologies}
    known = ", ".join(sorted(by_name)) or "none"
    if name is None and not by_name:
        return None
    if name is None and len(by_name) > 1:
        raise refusal("Kubernetes objects", f"hold several topologies: {known}", hint="Say which one is meant")
    chosen = next(iter(by_name)) if name is None else name
    if chosen not in by_name:
        raise refusal("Kubernetes objects", f"hold no topology {quoted(chosen)}", hint=f"There is {known}")
    spec = by_name[chosen].called(named("topology", chosen)).child("spec")
    levels = tuple(each.text("nodeLabel") for each in spec.children("levels"))
    if not levels or len(set(levels)) < len(levels):
        raise spec.error("levels", "must name labels, each once", hint="Mend the object")
    return chosen, levels


def _path(node: KubeNode, levels: Sequence[str], odd: Oddities) -> tuple[str, ...]:
    """Return a node's domains. One that lacks a label is alone there, not beside those that lack it as well."""
    missing = [label for label in levels if label not in {HOSTNAME, CLIQUE} and not node.labels.get(label)]
    odd.note(_WITHOUT_LABEL, bool(missing))
    return tuple(node.labels.get(label) or node.name for label in levels)


def _stranger(node: KubeNode, levels: Sequence[str], topology: str) -> str | None:
    """Kueue places nothing on a node without all labels of the topology."""
    missing = _lacks(node, levels)
    return None if missing is None else f"without label {missing} of topology {topology}"


def _lacks(node: KubeNode, levels: Sequence[str]) -> str | None:
    return next((label for label in levels if label != HOSTNAME and not node.labels.get(label)), None)


def scale_up_level_of(
    nodes: Sequence[KubeNode], paths: Mapping[str, tuple[str, ...]], levels: Sequence[str], odd: Oddities
) -> str | None:
    """Return the level whose domains the fastest links join, as labels tell: one of these labels, or one that agrees.

    Levels of somebody's own agree if their domains hold the same nodes as the labels' do: racks that are one NVLink
    domain each. ``paths`` are of nodes that are where they are for a reason. Where none agrees, that is counted.
    """
    for label in (CLIQUE, ULTRASERVER):
        if label in levels:
            return label
    for label in (CLIQUE, ULTRASERVER):
        told = [(paths[node.name], node.labels.get(label) or node.name) for node in nodes if node.name in paths]
        joined = Counter(name for _, name in told)
        if not any(number > 1 for number in joined.values()):
            continue
        for depth in range(len(levels), 0, -1):
            pairs = {(path[:depth], name) for path, name in told}
            if len(pairs) == len({path for path, _ in pairs}) == len(joined):
                return levels[depth - 1]
        odd.note("node whose NVLink domain is no domain of any level", sum(n for n in joined.values() if n > 1))
    are_joined = all(node.labels.get(INSTANCE_TYPE, "").startswith(_JOINED_MACHINES) for node in nodes)
    return SUBBLOCK if are_joined and SUBBLOCK in levels else None
