"""Where Google says that machines stand. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.clouds.gcp import sight, tpu_words
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree

HOST_LEVELS = ("cluster", "block", "subblock")
"""Of ``resourceStatus.physicalHostTopology``, outermost first. The host itself is the node."""

NVLINK_LEVEL = "subblock"
"""One NVLink domain, of machines that have NVLink between them (Google's AI Hypercomputer terminology, 2026-01)."""

_JOINED_MACHINES = "a4x-"
"""What the names of these machines begin with."""


def tree(lease: Lease, machines: Sequence[sight.Json]) -> TopologyTree:
    """Return the lease's live nodes as deep as Google tells of all of them; one of which it tells less hides the rest.

    A machine without accelerators counts as one slot.
    """
    listed = {each["name"]: each for each in machines}
    live = [node.id for node in lease.nodes if not node.state.is_gone]
    places = {name: _host(listed.get(name, {})) for name in live}
    depth = min((len(each) for each in places.values()), default=0)
    is_joined = lease.pool.shape.startswith(_JOINED_MACHINES) and NVLINK_LEVEL in HOST_LEVELS[:depth]
    return TopologyTree(
        scale_up_level=NVLINK_LEVEL if is_joined else None,
        levels=("region", "zone", *HOST_LEVELS[:depth]),
        nodes=tuple(
            TopologyNode(
                id=NodeId(name),
                path=(lease.pool.region, lease.pool.zone, *places[name][:depth]),
                shape=lease.pool.shape,
                num_slots=(slots := _num_slots(listed.get(name, {}))),
                num_free_slots=slots,
            )
            for name in live
        ),
    )


def slices(lease: Lease) -> TopologyTree:
    """Return the lease's live slices of TPUs in their zone. Google does not tell where in it they are."""
    num_chips = tpu_words.num_chips(lease.pool.shape)
    return TopologyTree(
        levels=("region", "zone"),
        nodes=tuple(
            TopologyNode(
                id=node.id,
                path=(lease.pool.region, lease.pool.zone),
                shape=lease.pool.shape,
                num_slots=num_chips,
                num_free_slots=num_chips,
            )
            for node in lease.nodes
            if not node.state.is_gone
        ),
    )


def _host(machine: sight.Json) -> tuple[str, ...]:
    """Return the domains that a machine's host lies in, as far as they are told without a gap."""
    told = machine.get("resourceStatus", {}).get("physicalHostTopology", {})
    domains: list[str] = []
    for level in HOST_LEVELS:
        if not told.get(level):
            break
        domains.append(told[level])
    return tuple(domains)


def _num_slots(machine: sight.Json) -> int:
    return sum(each.get("acceleratorCount", 0) for each in machine.get("guestAccelerators", [])) or 1
