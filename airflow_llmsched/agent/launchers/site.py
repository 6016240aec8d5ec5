"""What every launcher is told of the node it starts ranks on, and the environment that it builds upon."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers.devices import TPU, selection, tpu_process, vendor_of, without_selection
from airflow_llmsched.agent.launchers.ports import Ports, addresses
from airflow_llmsched.agent.meeting import Meeting
from airflow_llmsched.agent.scratch import Scratch

RANK_WRAPPER = (sys.executable, "-P", "-m", "airflow_llmsched.agent.rank", "--")
"""Records how the command after it starts and ends."""

_LAUNCHER_OWNED = frozenset(
    (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "TF_CONFIG"),
        *(wire.MEMBER, wire.FIRST_RANK, wire.ADDRESSES),
    )
)
_LAUNCHER_OWNED_PREFIXES = ("OMPI_COMM_", "OMPI_MCA_orte_", "PMIX_")
"""A gang submitted from within another must not inherit that one's ranks."""


class Start(NamedTuple):
    """One process to start, and the files (text by path) that it reads, to be written before."""

    argv: list[str]
    environ: dict[str, str]
    files: Mapping[Path, str] = MappingProxyType({})
    is_helper: bool = False


class Site(NamedTuple):
    """One node of one attempt.

    Attributes:
        body: The launch request's body (see ``engines.agent_request``).
        node_index: The node's place among the gang's.
        meeting: Where the ranks meet: the rendezvous endpoint, or MASTER_ADDR and MASTER_PORT.
        node_dir: The node's part of the attempt's directory.
        environ: What every process of the node gets.
        ports: Ports of members that others reach by themselves.
        scratch: Folders that go with the node's processes, for a launcher that leaves files when it is killed.
    """

    body: Mapping[str, Any]
    node_index: int
    meeting: Meeting
    node_dir: Path
    environ: Mapping[str, str]
    ports: Ports
    scratch: Scratch | None = None

    @property
    def part(self) -> Mapping[str, Any]:
        """The node's entry of the request."""
        part: Mapping[str, Any] = self.body["nodes"][self.node_index]
        return part

    @property
    def ranks(self) -> list[int]:
        """The node's ranks, by local rank."""
        ranks: list[int] = self.part["ranks"]
        return ranks

    @property
    def is_one_machine(self) -> bool:
        """Whether the gang's nodes share one machine, and no node has an address that others know it by."""
        return "address" not in self.part

    @property
    def wrapper(self) -> list[str]:
        """The command of each rank, within the wrapper that records its start and end."""
        return [*RANK_WRAPPER, *self.body["command"]]

    def place(self) -> dict[str, str]:
        """Return where the gang meets and how large it is: what all ranks of a node have in common."""
        return {
            "WORLD_SIZE": str(self.body["world_size"]),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "GROUP_RANK": str(self.node_index),
            "MASTER_ADDR": self.meeting.host,
            "MASTER_PORT": str(self.meeting.port),
        }

    def place_of(self, local_rank: int) -> dict[str, str]:
        """Return who a rank is and where the gang meets, as torch.distributed reads it (``env://``)."""
        place = {"RANK": str(self.ranks[local_rank]), "LOCAL_RANK": str(local_rank), **self.place()}
        if vendor_of(self.body) == TPU and len(self.body["nodes"]) == 1:
            reached = addresses(self.body, self.ports)[wire.TRAINER]
            place |= tpu_process(self.part["slots"], index=local_rank, addresses=reached)
        return place


def site_of(
    body: Mapping[str, Any],
    *,
    node: str,
    meeting: Meeting,
    node_dir: Path,
    supervisor: str,
    base: Mapping[str, str],
    ports: Ports = MappingProxyType({}),
    scratch: Scratch | None = None,
) -> Site:
    """Return a node's site.

    Args:
        body: The launch request's body (see ``engines.agent_request``).
        node: The node's id.
        meeting: Where the ranks meet.
        node_dir: The node's part of the attempt's directory.
        supervisor: Identity of the process that watches over the ranks.
        base: Environment to build on.
        ports: By node, the ports that its supervisor holds for its members (``ports.num_ports`` says how many).
        scratch: The node's folders that go with its processes, for a launcher that leaves files behind.
    """
    index = [each["node"] for each in body["nodes"]].index(node)
    vendor = vendor_of(body)
    part = body["nodes"][index]
    devices = {} if vendor == TPU else selection(vendor, part.get("shown", part.get("slots", ())))
    environ = {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",  # a killed rank's last lines are the ones worth reading
        **{name: value for name, value in without_selection(base, vendor).items() if not _is_launchers(name)},
        **devices,
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
        wire.ROLE: wire.TRAINER,
        **_told(body, ports),
        **whose(body),
    }
    return Site(
        body=body,
        node_index=index,
        meeting=meeting,
        node_dir=node_dir,
        environ=environ,
        ports=ports,
        scratch=scratch,
    )


def whose(body: Mapping[str, Any]) -> dict[str, str]:
    """Return environment entries by which a process says whose it is when every file of its attempt is gone."""
    return {wire.CHANNEL: body["channel_root"], wire.ORIGIN: json.dumps(body.get("origin"), separators=(",", ":"))}


def _told(body: Mapping[str, Any], ports: Ports) -> dict[str, str]:
    """Return what every process of a gang with helpers is told: where those are reached, by role."""
    helpers = {role: where for role, where in addresses(body, ports).items() if role != wire.TRAINER}
    return {wire.ADDRESSES: json.dumps(helpers, separators=(",", ":"))} if helpers else {}


def _is_launchers(name: str) -> bool:
    return name in _LAUNCHER_OWNED or name.startswith(_LAUNCHER_OWNED_PREFIXES)
