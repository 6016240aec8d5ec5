"""DeepSpeed's launcher of one node. Its launcher of many nodes is not used: supervisors reach nodes, not pdsh or ssh.

Options of ``deepspeed.launcher.launch`` 0.19, which reads how many ranks each node has from ``--world_info``.
"""

from __future__ import annotations

import base64
import json
import sys

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers.devices import visible_ids
from airflow_llmsched.agent.launchers.site import Site, Start


def starts(site: Site) -> list[Start]:
    """Return the node's launcher, which starts its ranks."""
    argv = [
        *(sys.executable, "-P", "-m", "deepspeed.launcher.launch"),
        f"--world_info={base64.urlsafe_b64encode(_world_info(site)).decode()}",
        f"--node_rank={site.node_index}",
        f"--master_addr={site.meeting.host}",
        f"--master_port={site.meeting.port}",
        "--no_local_rank",  # a command is what its user wrote: LOCAL_RANK is in the environment
        "--no_python",
        *site.wrapper,
    ]
    # It takes local ranks to be the remainder of ranks by their number on the node, which differs between nodes.
    own = {"GROUP_RANK": str(site.node_index), wire.FIRST_RANK: str(site.ranks[0])}
    return [Start(argv, {**site.environ, **own})]


def _world_info(site: Site) -> bytes:
    """Devices by node, in the order of ranks: the launcher shows ranks its node's, and only counts those of others."""
    info = {
        each["node"]: [str(index) for index in range(len(each["ranks"]))]
        for each in site.body["nodes"]
        if each["ranks"]
    }
    own = site.body["nodes"][site.node_index]
    info[own["node"]] = visible_ids(site.environ, num_ranks=len(own["ranks"]))
    return json.dumps(info, separators=(",", ":")).encode()
