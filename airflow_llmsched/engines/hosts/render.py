"""From a gang to the hosts engine's launch request. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.gang import GangSpec, LaunchRequest
from airflow_llmsched.engines.agent_request import agent_body, check_gang
from airflow_llmsched.engines.divided import device_names
from airflow_llmsched.engines.hosts.inventory import Host
from airflow_llmsched.errors import SpecError

NAME = "hosts"
_PATH = "PYTHONPATH"


def render(gang: GangSpec, *, hosts: Sequence[Host], peer_limit_s: float | None = None) -> LaunchRequest:
    """Return the request for ``gang`` on these hosts. Raises ``SpecError`` for what they cannot launch.

    ``peer_limit_s`` is how long a host's supervisor may be unseen by the others before the gang is over.
    """
    slices = {host.name: device_names(host.divided) for host in hosts}
    check_gang(gang, slots={host.name: host.num_slots for host in hosts}, slices=slices)
    if _PATH in gang.environment:
        hint = "is how ranks on a host find the agent; name folders of code by the engine's option 'code' instead"
        raise SpecError(path="environment", value=_PATH, hint=hint)
    body = agent_body(gang, addresses={host.name: host.address for host in hosts}, slices=slices)
    if peer_limit_s is not None:
        body["peer_limit_s"] = peer_limit_s
    return LaunchRequest(engine=NAME, key=gang.key, body=body)
