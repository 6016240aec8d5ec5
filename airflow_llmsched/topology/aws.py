"""Where EC2 says that instances hang in its network: what ``aws ec2 describe-instance-topology`` prints. Pure.

Fields as in the API reference of ``InstanceTopology`` (2026-11): three or four network nodes, topmost first; a Capacity
Block only for instances of UltraServers, whose members it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.topology.fields import Fields, named
from airflow_llmsched.topology.reading import Machines, Network, Oddities, Reading, num_accelerators, refusal, tree_of

ZONE_LEVEL = "zone"

ULTRASERVER_LEVEL = "ultraserver"
"""Instances that NVLink joins. EC2 names them by the Capacity Block that one UltraServer is rented as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance. ``network_nodes`` are empty for types, and in states, of which EC2 does not tell them."""

    id: str
    shape: str = ""
    zone: str = ""
    network_nodes: tuple[str, ...] = ()
    block: str = ""


def read_aws(document: object) -> Reading:
    """Return the tree of the instances, all free, with as many slots as accelerators are known of their types.

    Raises ``DataError``.
    """
    odd = Oddities()
    top = Fields(document, "DescribeInstanceTopology")
    odd.note("list that goes on: ask with NextToken and add what comes", bool(top.text("NextToken", "")))
    instances = [instance_of(each) for each in top.children("Instances")]
    by_id = {each.id: each for each in instances}
    if len(by_id) < len(instances):
        raise refusal("DescribeInstanceTopology", "lists an instance twice", hint="List them anew")
    if not instances:
        raise refusal("DescribeInstanceTopology", "lists no instance", hint="Ask for the region that they run in")
    odd.note("instance without network nodes", sum(not each.network_nodes for each in instances))
    odd.note("instance without a zone", sum(not each.zone for each in instances))
    depth = max(len(each.network_nodes) for each in instances)
    network = network_below_zone(by_id, depth=depth)
    nodes = [_node(each, network, odd) for each in instances]
    whole = Network(levels=(ZONE_LEVEL, *network.levels), scale_up_level=network.scale_up_level)
    return Reading(tree=tree_of(whole, nodes), warnings=odd.counted())


def instance_of(row: Fields) -> Instance:
    """Return what a row says. Raises ``DataError``."""
    instance_id = row.text("InstanceId")
    fields = row.called(named("instance", instance_id))
    return Instance(
        id=instance_id,
        shape=fields.text("InstanceType", ""),
        zone=fields.text("AvailabilityZone", "") or fields.text("ZoneId", ""),
        network_nodes=fields.texts("NetworkNodes"),
        block=fields.text("CapacityBlockId", ""),
    )


def network_below_zone(instances: Mapping[str, Instance], *, depth: int) -> Network:
    """Return ``depth`` levels of network nodes, and one of UltraServers where EC2 says of each instance whose it is.

    An instance of which fewer network nodes are told is alone below them: a guess would put strangers side by side.
    """
    are_joined = bool(instances) and all(each.block for each in instances.values())
    levels = (*(f"network-{level}" for level in range(1, depth + 1)), *([ULTRASERVER_LEVEL] * are_joined))
    return Network(
        levels=levels,
        paths={name: _path(each, depth=depth, are_joined=are_joined) for name, each in instances.items()},
        scale_up_level=ULTRASERVER_LEVEL if are_joined else None,
    )


def _path(instance: Instance, *, depth: int, are_joined: bool) -> tuple[str, ...]:
    told = instance.network_nodes[:depth]
    return (*told, *([instance.id] * (depth - len(told))), *([instance.block] * are_joined))


def _node(instance: Instance, network: Network, odd: Oddities) -> TopologyNode:
    num_slots = num_accelerators(instance.shape)
    odd.note("instance of a type that is not known, which counts as one slot", num_slots is None)
    slots = num_slots or Machines().slots
    return TopologyNode(
        id=NodeId(instance.id),
        path=(instance.zone or instance.id, *network.paths[instance.id]),
        shape=instance.shape or Machines().shape,
        num_slots=slots,
        num_free_slots=slots,
    )
