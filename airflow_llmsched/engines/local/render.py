"""From a gang to the local engine's launch request. Pure; ``agent.launch`` turns the request into argument lists."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from airflow_llmsched.domain.gang import GangSpec, LaunchRequest
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.errors import SpecError

NAME = "local"
VERSION = 1

_ATTEMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}-g[0-9]{1,9}-a[0-9]{1,9}")
_RESERVED = "LLMSCHED_"
_AGENT_SETS = frozenset(
    f"{_RESERVED}{name}"
    for name in (
        *("RUN_KEY", "GENERATION", "ATTEMPT", "ATTEMPT_NAME", "NODE", "SPOOL", "LAYOUT", "GRACE_S", "SUPERVISOR"),
        *("CHANNEL", "ORIGIN"),
    )
)


def render(gang: GangSpec, *, nodes: Sequence[NodeId], slots_per_node: int) -> LaunchRequest:
    """Return the request for ``gang`` on an engine with these nodes. Raises ``SpecError`` for what it cannot launch."""
    _check(gang, nodes=nodes, slots_per_node=slots_per_node)
    return LaunchRequest(engine=NAME, key=gang.key, body=_body(gang))


def is_attempt_name(name: str) -> bool:
    """Whether ``name`` has the form ``<run>-g<generation>-a<attempt>`` and is one path component, no surprises."""
    return _ATTEMPT_NAME.fullmatch(name) is not None


def _body(gang: GangSpec) -> dict[str, Any]:
    placement = gang.placement
    layout = {
        name: value
        for name, value in dataclasses.asdict(gang.layout).items()
        if name in ("dp", "tp", "pp", "cp", "ep", "zero_stage", "micro_batch_size", "num_micro_batches")
    }
    return {
        "v": VERSION,
        "attempt_name": gang.key.name,
        "run_key": str(gang.key.run),
        "generation": gang.key.generation,
        "attempt": gang.key.attempt,
        "launcher": gang.launcher.value,
        "command": list(gang.command),
        "environment": dict(sorted(gang.environment.items())),
        "layout": layout,
        "world_size": placement.world_size,
        "nodes": [
            {
                "node": str(node),
                "ranks": [slot.rank for slot in placement.on(node)],
                "slots": [slot.slot for slot in placement.on(node)],
            }
            for node in placement.nodes
        ],
        "channel_root": gang.channel_root,
        "channel_links": gang.channel_links,
        "start_limit_s": gang.start_limit_s,
        "grace_s": gang.grace_s,
        "exit_grace_s": gang.exit_grace_s,
        "flush_interval_s": gang.flush_interval_s,
        "lease_s": gang.lease_s,
        "origin": None if gang.origin is None else dataclasses.asdict(gang.origin),
    }


def _check(gang: GangSpec, *, nodes: Sequence[NodeId], slots_per_node: int) -> None:
    if not is_attempt_name(gang.key.name):
        raise SpecError(
            path="key.run", value=gang.key.run, hint="must be a short name of letters, digits, '.', '_', '-'"
        )
    if not gang.command or not gang.command[0]:
        raise SpecError(path="command", value=gang.command, hint="must name a program to run for each rank")
    if any("\0" in part for part in gang.command):
        raise SpecError(path="command", hint="must not contain a NUL character: no program can be given one")
    name = "channel_root" if gang.channel_links is None else "channel_links"
    if not str(getattr(gang, name)).startswith("/"):
        raise SpecError(path=name, value=getattr(gang, name), hint="must be an absolute path on this machine")
    _check_environment(gang)
    _check_placement(gang, nodes=nodes, slots_per_node=slots_per_node)
    for name in ("start_limit_s", "flush_interval_s"):
        if not getattr(gang, name) > 0:
            raise SpecError(path=name, value=getattr(gang, name), hint="must be above 0 s")
    for name in ("grace_s", "exit_grace_s"):
        if not getattr(gang, name) >= 0:
            raise SpecError(path=name, value=getattr(gang, name), hint="must be 0 s or more")


def _check_environment(gang: GangSpec) -> None:
    for name, value in gang.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            # The value is not shown: it may be one that nobody should read in a log.
            raise SpecError(path="environment", value=name, hint="is no legal environment entry (empty, '=' or NUL)")
        if name in _AGENT_SETS:
            raise SpecError(path="environment", value=name, hint="is set by the agent; choose another name")


def _check_placement(gang: GangSpec, *, nodes: Sequence[NodeId], slots_per_node: int) -> None:
    placement = gang.placement
    if placement.world_size != gang.layout.world_size:
        hint = f"must place as many ranks as the layout has: {gang.layout.world_size}"
        raise SpecError(path="placement", value=placement.world_size, hint=hint)
    if [slot.rank for slot in placement.slots] != list(range(placement.world_size)):
        raise SpecError(path="placement", hint="must list ranks 0, 1, 2, ... in order")
    taken: set[tuple[NodeId, int]] = set()
    for slot in placement.slots:
        if slot.node not in nodes:
            raise SpecError(path="placement", value=slot.node, hint=f"must use the engine's nodes: {', '.join(nodes)}")
        if not 0 <= slot.slot < slots_per_node or (slot.node, slot.slot) in taken:
            hint = f"must use each of slots 0 to {slots_per_node - 1} of node {slot.node} at most once"
            raise SpecError(path="placement", value=slot.slot, hint=hint)
        taken.add((slot.node, slot.slot))
