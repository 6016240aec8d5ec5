"""Open MPI: ``mpirun`` on the first node, its daemons on all nodes, each under that node's own supervisor.

mpirun would start its daemons by ssh. It is given ``agent.hand`` in ssh's place, which hands a daemon's command to the
supervisor of its node; so every process of a node is below, and ends with, that node's supervisor. Options of Open MPI
4.1 (``ompi_info --all``), set by environment: what a user sets in ``launcher.environment`` wins.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers import rank_files
from airflow_llmsched.agent.launchers.ports import address_of
from airflow_llmsched.agent.launchers.site import Site, Start

HOSTFILE = "hostfile"
RANKFILE = "rankfile"
DAEMON = "orted"

_HAND = "airflow_llmsched.agent.hand"
_OTHERS_ALLOCATIONS = "^alps,gridengine,lsf,slurm,tm"
"""The nodes are the placement's: inside a job of Slurm, mpirun must not count those of the job instead."""

_IN_MEMORY = tuple(f"OMPI_MCA_{name}_backing_directory" for name in ("btl_vader", "osc_sm", "osc_rdma"))


def starts(site: Site) -> list[Start]:
    """Return mpirun on the first node, and nothing on others: their daemons are asked for. Raises ``ValueError``."""
    if site.node_index != 0:
        return []
    if any(each.isspace() for each in sys.executable):
        raise ValueError(f"mpirun cannot be given a Python whose path has a space: {sys.executable!r}")
    hostfile, rankfile = site.node_dir / HOSTFILE, site.node_dir / RANKFILE
    argv = [
        _program("mpirun", site),
        *("--hostfile", str(hostfile), "--rankfile", str(rankfile)),
        *("-np", str(site.body["world_size"])),
        *site.wrapper,
    ]
    files = {hostfile: _hostfile(site), rankfile: _rankfile(site, num_cores=num_cores())}
    return [Start(argv, environ_of(site), files)]


def daemon(site: Site, argv: list[str]) -> Start:
    """Return the daemon that mpirun wants on this node. Raises ``ValueError`` for anything else."""
    if not argv or Path(argv[0]).name != DAEMON:
        raise ValueError(f"mpirun asked for {argv[:1]} instead of its daemon")
    return Start([_program(argv[0], site), *argv[1:]], environ_of(site))


def environ_of(site: Site) -> dict[str, str]:
    """Return the environment of mpirun and its daemons. Ranks inherit that of their own node's daemon."""
    mca = {
        "plm": "rsh",
        "plm_rsh_agent": f"{sys.executable} -P -m {_HAND}",
        "plm_rsh_no_tree_spawn": "1",  # every daemon is asked for here, none by another daemon
        "orte_leave_session_attached": "1",  # a daemon that detaches itself could not be waited for
        "ras": _OTHERS_ALLOCATIONS,
        "plm_rsh_pass_environ_mca_params": "0",  # each daemon has its own node's, which tell of that node's folders
        "odls_base_sigkill_timeout": str(math.ceil(site.body["grace_s"]) + 1),
    }
    if site.is_one_machine:
        # Ranks of two such nodes would share one machine's names for shared memory: each took the other's.
        mca |= {"btl": "tcp,self", "btl_tcp_if_include": "lo", "oob_tcp_if_include": "lo"}
    given = {
        **{f"OMPI_MCA_{name}": value for name, value in mca.items()},
        **_folders(site),
        **({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}),
    }
    return {**given, **site.environ, **site.place()}


def _folders(site: Site) -> dict[str, str]:
    """Say where Open MPI's files go that it leaves when its processes are killed: of sessions, and of shared memory.

    Ranks take it from their wrapper: Open MPI hands them what mpirun was told, whose folders are on the first node.
    """
    if site.scratch is None:
        return {}
    found = {}
    if site.scratch.disk is not None:
        found["OMPI_MCA_orte_tmpdir_base"] = str(site.scratch.disk)
    if site.scratch.memory is not None:
        found |= dict.fromkeys(_IN_MEMORY, str(site.scratch.memory))
    given = {name: value for name, value in found.items() if name not in site.environ}
    return {**given, wire.OF_NODE: json.dumps(given, separators=(",", ":"))}


def num_cores() -> int:
    """Return the cores that this process may use; threads of one core count once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(tuple((topology / name).read_text().strip() for name in ("physical_package_id", "core_id")))
        except OSError:
            cores.add((str(cpu),))
    return len(cores)


def _program(name: str, site: Site) -> str:
    found = shutil.which(name, path=site.environ.get("PATH"))
    if found is None:
        raise ValueError(f"{name} is not on this node's PATH: install Open MPI there, or choose another launcher")
    return found


def _hostfile(site: Site) -> str:
    parts = enumerate(site.body["nodes"])
    return rank_files.hostfile((address_of(site.body, index), len(part["ranks"])) for index, part in parts)


def _rankfile(site: Site, *, num_cores: int) -> str:
    """Which rank is on which node. All cores are each rank's: no launcher of ours binds ranks to some of them."""
    cores = f"0-{num_cores - 1}" if num_cores > 1 else "0"
    return rank_files.rankfile(
        (rank, address_of(site.body, index), cores)
        for index, part in enumerate(site.body["nodes"])
        for rank in part["ranks"]
    )
