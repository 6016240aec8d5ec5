"""How schedulers of pods place what a plan tells them, re-stated from their documentation, to see what they keep.

Knows the text that is written out for them, and nothing of how it came about. Each rule returns the node of each pod,
by the pod's index, or None where the gang would wait.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Free nodes by path, each with room for one pod; ``levels`` outermost first."""

    levels: tuple[str, ...]
    paths: Mapping[str, Path]

    def depth(self, level: str) -> int:
        """Index of a level, counted from 1: 0 is the fleet."""
        return self.levels.index(level) + 1

    def inside(self, within: Path) -> list[str]:
        """Nodes of a domain in the order of their paths."""
        found = (name for name, path in self.paths.items() if path[: len(within)] == within)
        return sorted(found, key=lambda name: (self.paths[name], name))

    def domains(self, depth: int) -> list[Path]:
        """Domains at a depth in path order."""
        return sorted({path[:depth] for path in self.paths.values()})


def kueue(text: str, nodes: Nodes, *, num_pods: int) -> list[str] | None:
    """Count room in whole slices, level by level upwards; then choose domains downwards, each getting whole slices.

    KEP-2724, "Two-level Topology Aware scheduling": most free first, and best fit last. Pods are numbered along the
    order of the domains.
    """
    told = {name.partition("/")[2]: value for name, value in yaml.safe_load(text)["annotations"].items()}
    layers = {}
    if "podset-slice-size" in told:
        layers = {nodes.depth(told["podset-slice-required-topology"]): int(told["podset-slice-size"])}
    for layer in json.loads(told.get("podset-slice-required-topology-constraints", "[]")):
        layers[nodes.depth(layer["topology"])] = layer["size"]
    required = told.get("podset-required-topology")
    starts = nodes.domains(nodes.depth(required)) if required else [()]
    rooms = {start: _room(nodes, start, layers) for start in starts}
    enough = [start for start in starts if rooms[start] >= num_pods]
    if not enough:
        return None
    chosen = _descend(nodes, min(enough, key=lambda start: (rooms[start], start)), num_pods, layers)
    return sorted(chosen, key=lambda name: (nodes.paths[name], name))


def _unit(depth: int, layers: Mapping[int, int]) -> int:
    return max((size for level, size in layers.items() if level >= depth), default=1)


def _children(nodes: Nodes, within: Path) -> list[Path]:
    return sorted({nodes.paths[name][: len(within) + 1] for name in nodes.inside(within)})


def _room(nodes: Nodes, within: Path, layers: Mapping[int, int]) -> int:
    if len(within) == len(nodes.levels):
        total = len(nodes.inside(within))
    else:
        total = sum(_room(nodes, child, layers) for child in _children(nodes, within))
    unit = _unit(len(within), layers)
    return total // unit * unit


def _descend(nodes: Nodes, within: Path, num_pods: int, layers: Mapping[int, int]) -> list[str]:
    if len(within) == len(nodes.levels):
        return nodes.inside(within)[:num_pods]
    rooms = {child: _room(nodes, child, layers) for child in _children(nodes, within)}
    chosen: list[str] = []
    while len(chosen) < num_pods:
        left = num_pods - len(chosen)
        enough = [child for child, room in rooms.items() if room >= left]
        child = min(enough, key=lambda each: rooms[each]) if enough else max(rooms, key=lambda each: rooms[each])
        chosen += _descend(nodes, child, min(left, rooms.pop(child)), layers)
    return chosen


def volcano(text: str, nodes: Nodes, *, num_pods: int) -> list[str] | None:
    """Partitions one after the other, each in the HyperNode of its tier that has least to spare."""
    spec = json.loads(text)["spec"]
    (task,) = spec["tasks"]
    assert task["replicas"] == spec["minAvailable"] == num_pods
    whole = spec.get("networkTopology", {})
    policy = task.get("partitionPolicy", {"partitionSize": num_pods, "networkTopology": {}})
    return _by_runs(
        nodes,
        num_pods,
        size=policy["partitionSize"],
        level=policy["networkTopology"].get("highestTierName"),
        whole=whole["highestTierName"] if whole.get("mode") == "hard" else None,
    )


def kai(text: str, nodes: Nodes, *, num_pods: int) -> list[str] | None:
    """Segments by index, each with its own required level inside the workload's.

    Segments are read from the template of the pods alone.
    """
    documents = text.split("---\n")
    told: dict[str, str] = {}
    for document in documents:
        own = yaml.safe_load(document)["annotations"]
        is_template = document.startswith("# metadata of the pod template")
        assert all(name.startswith("kai.scheduler/segment-") == is_template for name in own), document
        told |= own
    return _by_runs(
        nodes,
        num_pods,
        size=int(told.get("kai.scheduler/segment-size", num_pods)),
        level=told.get("kai.scheduler/segment-topology-required-placement"),
        whole=told.get("kai.scheduler/topology-required-placement"),
    )


def pod_groups(text: str, nodes: Nodes, *, num_pods: int) -> list[str] | None:
    """Each group by itself, all of it under one value of its key."""
    specs = [item["spec"] for item in json.loads(text)["items"]]
    sizes = {spec["schedulingPolicy"]["gang"]["minCount"] for spec in specs}
    keys = {spec.get("schedulingConstraints", {}).get("topology", [{}])[0].get("key") for spec in specs}
    (size,), (key,) = sizes, keys
    assert size * len(specs) == num_pods
    return _by_runs(nodes, num_pods, size=size, level=key, whole=None)


def slurm(text: str, nodes: Nodes, *, num_pods: int) -> list[str] | None:
    """``--segment``: runs of nodes in one block each; ``--switches=1``: all below one leaf. Numbered in node order."""
    told = dict(each.removeprefix("--").split("=", 1) for each in shlex.split(text))
    assert int(told["nodes"]) == num_pods
    leaf = nodes.levels[-1]
    if told.get("switches") == "1":
        return _by_runs(nodes, num_pods, size=num_pods, level=leaf, whole=None)
    size = int(told.get("segment", 0))
    found = _by_runs(nodes, num_pods, size=size or num_pods, level=leaf if size else None, whole=None)
    return None if found is None else sorted(found, key=lambda name: (nodes.paths[name], name))


def _by_runs(nodes: Nodes, num_pods: int, *, size: int, level: str | None, whole: str | None) -> list[str] | None:
    starts: Sequence[Path] = nodes.domains(nodes.depth(whole)) if whole else [()]
    for start in starts:
        free = nodes.inside(start)
        found: list[str] = []
        while len(found) < num_pods:
            depth = nodes.depth(level) if level else 0
            by_domain: dict[Path, list[str]] = {}
            for name in free:
                by_domain.setdefault(nodes.paths[name][:depth], []).append(name)
            enough = [members for members in by_domain.values() if len(members) >= size]
            if not enough:
                break
            run = min(enough, key=len)[:size]
            found += run
            free = [name for name in free if name not in run]
        if len(found) == num_pods:
            return found
    return None
