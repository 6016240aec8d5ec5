"""What one node runs: argument lists and environments of its launcher, from the attempt's request; and their start.

Nothing of the environment ever appears in an argument list, and no shell is involved.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from airflow_llmsched.agent import wire

HOST = "127.0.0.1"

_MAX_NODES = 900


class Start(NamedTuple):
    """One process to start."""

    argv: list[str]
    environ: dict[str, str]


def starts(
    body: Mapping[str, Any],
    *,
    node: str,
    port: int,
    node_dir: Path,
    supervisor: str,
    base: Mapping[str, str],
) -> list[Start]:
    """Return what to start on ``node``: torchrun, or each rank by itself.

    Args:
        body: The launch request's body (see ``engines.local.render``).
        node: The node's id.
        port: Where the ranks meet: the rendezvous port, or MASTER_PORT.
        node_dir: The node's part of the attempt's directory.
        supervisor: Identity of the process that watches over the ranks.
        base: Environment to build on.
    """
    nodes = [each["node"] for each in body["nodes"]]
    index = nodes.index(node)
    environ = _environ(body, node=node, node_dir=node_dir, supervisor=supervisor, base=base)
    wrapper = [sys.executable, "-P", "-m", "airflow_llmsched.agent.rank", "--", *body["command"]]
    ranks = body["nodes"][index]["ranks"]
    if body["launcher"] == "torchrun":
        argv = _torchrun(body, num_ranks=len(ranks), index=index, port=port)
        return [Start([*argv, f"--log-dir={node_dir / 'torchrun'}", "--no-python", *wrapper], environ)]
    return [
        Start(
            wrapper,
            {
                **environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(body["world_size"]),
                "LOCAL_WORLD_SIZE": str(len(ranks)),
                "GROUP_RANK": str(index),
                "MASTER_ADDR": HOST,
                "MASTER_PORT": str(port),
            },
        )
        for local_rank, rank in enumerate(ranks)
    ]


def whose(body: Mapping[str, Any]) -> dict[str, str]:
    """Return environment entries by which a process says whose it is when every file of its attempt is gone."""
    return {wire.CHANNEL: body["channel_root"], wire.ORIGIN: json.dumps(body.get("origin"), separators=(",", ":"))}


def spawn(start: Start, *, log: Path) -> int:
    """Start one process in its own group, without our signal mask, its output in ``log``. Returns its pid."""
    return os.posix_spawn(
        start.argv[0],
        start.argv,
        start.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,
        setsigmask=(),
    )


def _environ(
    body: Mapping[str, Any], *, node: str, node_dir: Path, supervisor: str, base: Mapping[str, str]
) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",  # a killed rank's last lines are the ones worth reading
        **{name: value for name, value in base.items() if name not in _launcher_owned},
        **body["environment"],
        wire.RUN_KEY: body["run_key"],
        wire.GENERATION: str(body["generation"]),
        wire.ATTEMPT: str(body["attempt"]),
        wire.ATTEMPT_NAME: body["attempt_name"],
        wire.NODE: node,
        wire.SPOOL: str(node_dir / wire.SPOOL_DIR),
        wire.LAYOUT: json.dumps(body["layout"], separators=(",", ":")),
        wire.GRACE_S: repr(float(body["grace_s"])),
        wire.SUPERVISOR: supervisor,
        **whose(body),
    }


_launcher_owned = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
)
"""A gang submitted from within another must not inherit that one's ranks."""


def _torchrun(body: Mapping[str, Any], *, num_ranks: int, index: int, port: int) -> Sequence[str]:
    # is_host is stated, not guessed: a host that cannot bind the port then says so, instead of joining whoever has it.
    limit_s = max(1, math.ceil(body["start_limit_s"]))
    conf = f"is_host={int(index == 0)},join_timeout={limit_s},read_timeout={limit_s}"
    return [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(body['nodes'])}",
        f"--nproc-per-node={num_ranks}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={HOST}:{port}",
        f"--rdzv-id={body['attempt_name']}",
        f"--rdzv-conf={conf}",
        f"--local-addr={_address(index)}",
        "--max-restarts=0",  # one restart authority: control
        "--monitor-interval=0.1",
    ]


def _address(index: int) -> str:
    """Return a loopback address of a node's own (all of 127.0.0.0/8 is).

    The c10d rendezvous hands out ranks in the order of these texts, so nodes get the ranks that the placement gave
    them. That is a convenience: nothing relies on it, as ranks are found by the records they wrote.
    """
    assert index < _MAX_NODES, index
    return f"127.0.{index // 100 + 1}.{index % 100 + 100}"
