"""From a gang to the local engine's launch request. Pure; ``agent.launch`` turns the request into argument lists."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.gang import GangSpec, LaunchRequest
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.agent_request import agent_body, check_gang
from airflow_llmsched.engines.divided import Divided, device_names

NAME = "local"


def render(
    gang: GangSpec, *, nodes: Sequence[NodeId], slots_per_node: int, divided: Sequence[Divided] = ()
) -> LaunchRequest:
    """Return the request for ``gang`` on an engine with these nodes. Raises ``SpecError`` for what it cannot launch."""
    slices = dict.fromkeys(nodes, device_names(divided))
    check_gang(gang, slots=dict.fromkeys(nodes, slots_per_node), slices=slices)
    return LaunchRequest(engine=NAME, key=gang.key, body=agent_body(gang, slices=slices))
