"""What one node runs: its launcher, chosen by the attempt's request, and its helpers; and their start.

Nothing of the environment ever appears in an argument list, and no shell is involved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.agent.launchers import deepspeed, jax, mpirun, plain, roles, tf_config, torchrun
from airflow_llmsched.agent.launchers.site import Site, Start, site_of, whose

__all__ = ["Site", "Start", "asks_for_daemons", "daemon", "site_of", "spawn", "starts", "whose"]

_LAUNCHERS = {
    "torchrun": torchrun.starts,
    "plain": plain.starts,
    "mpirun": mpirun.starts,
    "deepspeed": deepspeed.starts,
    "jax": jax.starts,
    "tf_config": tf_config.starts,
}


def starts(site: Site) -> list[Start]:
    """Return what to start on a node: its launcher, or each rank by itself, and its helpers.

    Raises ``ValueError`` when the launcher cannot be used there.
    """
    trainers = _LAUNCHERS[site.body["launcher"]](site) if site.ranks else []
    return [*trainers, *roles.starts(site)]


def asks_for_daemons(body: Mapping[str, Any]) -> bool:
    """Whether the launcher of the first node has every node run something for it."""
    return bool(body.get("launcher") == "mpirun")


def daemon(site: Site, argv: list[str]) -> Start:
    """Return what the launcher on the first node asked for on this one. Raises ``ValueError`` if none could have."""
    return mpirun.daemon(site, argv)


def spawn(start: Start, *, log: Path) -> int:
    """Start one process in its own group, without our signal mask, its output in ``log``. Returns its pid."""
    for path, text in start.files.items():
        path.write_text(text)
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
