"""Takes a node away for real: notice, grace period, SIGTERM, and SIGKILL a second later, supervisor included."""

from __future__ import annotations

import time

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.spool import create_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.local.client import LocalClient
from airflow_llmsched.errors import LaunchError

_NOTICE = EffectPoint("local.preempt.notice")
_END = EffectPoint("local.preempt.end")

_TERM_TO_KILL_S = 1.0


def preempt(client: LocalClient, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
    """Announce, wait ``grace_s``, end everything on ``node``; it can be used again ``return_after_s`` later. Blocks.

    Raises ``LaunchError`` when a process on it could not be ended.
    """
    now_s = time.time()
    deadline_s = now_s + grace_s
    notice = {"v": wire.VERSION, "at_s": now_s, "deadline_s": deadline_s}
    down = {**notice, "return_at_s": deadline_s + return_after_s, "reason": "preempted"}
    with client.exclusive():  # nobody places another gang there while we look for those that are
        client.take_down(node, down)
        names = [name for name in client.names() if client.is_using(name, node)]
        for name in names:
            with _NOTICE:
                create_json(client.gang(name).node(node).notice, notice)
    time.sleep(max(0.0, deadline_s - time.time()))
    gangs = [(client.gang(name), name) for name in names]
    with _END:
        left = proc.end_all(
            lambda: [each for gang, name in gangs for each in gang.processes(name, node)], grace_s=_TERM_TO_KILL_S
        )
    if left:
        raise LaunchError(f"node {node}: processes {[each.pid for each in left]} could not be ended")
