"""A gang of two nodes of two ranks, as its launchers are told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import launch
from airflow_llmsched.agent.launchers.site import Site
from airflow_llmsched.agent.meeting import Meeting

MEETING = Meeting("127.0.0.1", 20123)

BODY: dict[str, Any] = {
    "launcher": "torchrun",
    "attempt_name": "ls-x-g2-a3",
    "run_key": "ls-x",
    "generation": 2,
    "attempt": 3,
    "command": ["python", "train.py", "--name", "it's $(odd)"],
    "environment": {"LLMSCHED_DATASET": "/data", "OMP_NUM_THREADS": "2"},
    "layout": {"dp": 4},
    "world_size": 4,
    "channel_root": "/runs/x/channel",
    "origin": {"deployment_id": "d", "run": "ls-x", "dag_id": "a dag", "run_id": "r"},
    "nodes": [{"node": "n0", "ranks": [0, 1], "slots": [0, 1]}, {"node": "n1", "ranks": [2, 3], "slots": [2, 3]}],
    "start_limit_s": 90.5,
    "grace_s": 10,
}


def site(
    node: str,
    base: dict[str, str] | None = None,
    *,
    meeting: Meeting = MEETING,
    ports: Mapping[str, Sequence[int]] | None = None,
    **changes: Any,
) -> Site:
    """Return a node of the gang, with ``changes`` to its body."""
    return launch.site_of(
        {**BODY, **changes},
        node=node,
        meeting=meeting,
        node_dir=Path("/gang/nodes") / node,
        supervisor="1:2:boot",
        base={} if base is None else base,
        ports=ports or {},
    )


def starts(node: str, base: dict[str, str] | None = None, **changes: Any) -> list[launch.Start]:
    """Return what that node starts."""
    return launch.starts(site(node, base, **changes))


def with_helpers(*helpers: tuple[str, str]) -> dict[str, Any]:
    """Return changes that give the gang helpers (role and node); by itself two loaders, and an evaluator on slot 7."""
    wanted = helpers or (("data_loader", "n0"), ("evaluator", "n0"), ("data_loader", "n1"))
    nodes: dict[str, dict[str, Any]] = {part["node"]: {**part, "helpers": []} for part in BODY["nodes"]}
    roles: dict[str, dict[str, Any]] = {}
    for role, _ in wanted:
        command = {"data_loader": ["load", "it's $(odd)"], "evaluator": ["evaluate"]}.get(role, ["serve"])
        roles.setdefault(role, {"command": command, "num_ranks": 0})
    ordered = sorted(wanted, key=lambda each: list(roles).index(each[0]))  # role by role, as placements list them
    for member, (role, node) in enumerate(ordered, start=BODY["world_size"]):
        index = roles[role]["num_ranks"]
        roles[role]["num_ranks"] += 1
        slots = [7] if role == "evaluator" else []
        nodes[node]["helpers"].append({"role": role, "index": index, "member": member, "slots": slots})
    return {"roles": roles, "nodes": list(nodes.values())}
