"""Kubernetes objects as ``kubectl get ... -o json`` lists them, with what readers of topologies look at."""

from __future__ import annotations

from typing import Any

ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"


def kube_node(name: str, *, gpus: object = "8", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a node that is ready; ``spec`` may hold ``unschedulable`` and ``taints``."""
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "96", GPU: gpus},
            "capacity": {"cpu": "96", GPU: gpus},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        },
    }


def kube_pod(node: str, *gpus: int, phase: str = "Running", first: tuple[int, str] | None = None) -> dict[str, Any]:
    """Return a pod with a container for each number; ``first`` is one that runs before, and its restart policy."""
    spec: dict[str, Any] = {
        "nodeName": node,
        "containers": [{"resources": {"limits": {GPU: str(number)}}} for number in gpus],
    }
    if first is not None:
        number, policy = first
        spec["initContainers"] = [{"restartPolicy": policy, "resources": {"requests": {GPU: str(number)}}}]
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase}}


def kube_topology(name: str, *levels: str) -> dict[str, Any]:
    """Return a Topology object as Kueue has it."""
    spec = {"levels": [{"nodeLabel": level} for level in levels]}
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Topology", "metadata": {"name": name}, "spec": spec}


def hypernode(name: str, tier: object, *members: tuple[str, dict[str, Any]], tier_name: str = "") -> dict[str, Any]:
    """Return a HyperNode; members are kind and selector."""
    spec: dict[str, Any] = {
        "tier": tier,
        "members": [{"type": kind, "selector": selector} for kind, selector in members],
    }
    if tier_name:
        spec["tierName"] = tier_name
    return {"kind": "HyperNode", "metadata": {"name": name}, "spec": spec}


def exact(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return a member by its name."""
    return kind, {"exactMatch": {"name": name}}


def kube_list(*items: dict[str, Any]) -> dict[str, Any]:
    """Return a list as kubectl prints it."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}
