"""The helpers of a gang: loaders, evaluators, parameter servers. Pure.

They are started by their node's supervisor, whatever starts the trainers. Members of a gang are numbered: trainers by
their rank, helpers from the world size on; spools and logs are named by that number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers import tf_config
from airflow_llmsched.agent.launchers.devices import selection, share, vendor_of
from airflow_llmsched.agent.launchers.ports import addresses
from airflow_llmsched.agent.launchers.site import RANK_WRAPPER, Site, Start


def starts(site: Site) -> list[Start]:
    """Return the helpers of the node."""
    found = []
    num_before: dict[str, int] = {}
    num_taken = len(site.part.get("slots", ()))
    vendor = vendor_of(site.body)
    for helper in site.part.get("helpers", ()):
        role = helper["role"]
        local_index = num_before.get(role, 0)
        num_before[role] = local_index + 1
        slots = helper["slots"]
        devices = (
            selection(vendor, slots) if vendor else share(site.environ, num_before=num_taken, num_slots=len(slots))
        )
        num_taken += len(slots)
        environ = {
            **site.environ,
            **devices,
            **_place(site, helper, local_index=local_index),
        }
        if site.body["launcher"] == "tf_config":
            environ |= tf_config.task_of(site, role=role, index=helper["index"])
        found.append(Start([*RANK_WRAPPER, *site.body["roles"][role]["command"]], environ, is_helper=True))
    return found


def _place(site: Site, helper: Mapping[str, Any], *, local_index: int) -> dict[str, str]:
    """Say who a helper is. Its ranks are those of its role, which can meet at the address of its first."""
    role = helper["role"]
    host, _, port = addresses(site.body, site.ports)[role][0].rpartition(":")
    return {
        wire.ROLE: role,
        wire.MEMBER: str(helper["member"]),
        "RANK": str(helper["index"]),
        "LOCAL_RANK": str(local_index),
        "WORLD_SIZE": str(site.body["roles"][role]["num_ranks"]),
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
    }
