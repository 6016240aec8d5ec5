"""torchrun: one elastic agent for each node, which starts the node's ranks and never starts them again.

The rendezvous is the static one: each node is told its place, so that ranks are exactly the placement's. The dynamic
one (c10d) hands them out in the order of the nodes' address texts, and watches over nodes, which supervisors do here.
"""

from __future__ import annotations

import math
import sys

from airflow_llmsched.agent.launchers.site import Site, Start


def starts(site: Site) -> list[Start]:
    """Return the node's torchrun. The first node's serves the store, at the port that its supervisor holds."""
    body = site.body
    argv = [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        f"--nnodes={sum(bool(part['ranks']) for part in body['nodes'])}",  # those of helpers alone come last
        f"--node-rank={site.node_index}",
        f"--nproc-per-node={len(site.ranks)}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={site.meeting.endpoint}",
        f"--rdzv-id={body['attempt_name']}",
        f"--rdzv-conf=timeout={max(1, math.ceil(body['start_limit_s']))}",
        "--max-restarts=0",  # one restart authority: control
        "--monitor-interval=0.1",
        f"--log-dir={site.node_dir / 'torchrun'}",
        "--no-python",
        *site.wrapper,
    ]
    return [Start(argv, dict(site.environ))]
