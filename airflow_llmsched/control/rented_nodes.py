"""Which nodes a run may use, if it has rented some: those of its engine, or as hosts of their own. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from airflow_llmsched.domain.fleet import own_name
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeaseId
from airflow_llmsched.domain.topology import NO_TERMS, NodeTerms, TopologyTree
from airflow_llmsched.errors import SpecError

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_ANNOUNCES = ("aws", "azure", "gcp")
"""Clouds that tell a machine itself when they will take it, and whose word for that our agent knows."""

HOST_LEVELS = ("region", "zone", "host")
"""What the parts of a rented host's path are."""


TermsOf = Callable[[Lease], NodeTerms]
"""Says what each node of a lease costs, and how often it is taken."""


def only_rented(
    tree: TopologyTree, leases: Iterable[Lease], *, terms_of: TermsOf = lambda _: NO_TERMS
) -> TopologyTree | None:
    """Return the part of an engine's tree that ``leases`` hold; None when the engine has none of their nodes.

    A node is known by the cloud's id or by its address, in a fleet by what its cluster calls it. Where ``terms_of`` its
    lease says something, that counts instead of what the engine says.
    """
    lease_of = {
        name: lease for lease in leases for node in lease.nodes for name in (str(node.id), node.address) if name
    }
    held = [
        (node, lease)
        for node in tree.nodes
        if (lease := lease_of.get(str(node.id)) or lease_of.get(str(own_name(node.id)))) is not None
    ]
    terms = {lease.id: terms_of(lease) for _, lease in held}
    nodes = tuple(replace(node, terms=_of_both(node.terms, terms[lease.id])) for node, lease in held)
    return replace(tree, nodes=nodes) if nodes else None


def at_terms(tree: TopologyTree, terms: NodeTerms) -> TopologyTree:
    """Return a tree all of whose nodes have the terms of one lease, where these say something."""
    return replace(tree, nodes=tuple(replace(node, terms=_of_both(node.terms, terms)) for node in tree.nodes))


def _of_both(own: NodeTerms, rented: NodeTerms) -> NodeTerms:
    return replace(
        own,
        usd_per_hour=own.usd_per_hour if rented.usd_per_hour is None else rented.usd_per_hour,
        failures_per_hour=rented.failures_per_hour or own.failures_per_hour,
    )


def not_joined(leases: Iterable[Lease], tree: TopologyTree | None = None, *, must_be_usable: bool = False) -> str:
    """Say which nodes of leases an engine has yet to get, empty: none; without its ``tree`` it has none of them.

    ``must_be_usable``: those that it has and cannot use are such, too, and are told with the reason.
    """
    known: set[str] = set()
    why: dict[str, str] = {}
    for each in tree.nodes if tree else ():
        names = {str(each.id), own_name(each.id)}
        if must_be_usable and each.unusable_reason:
            why |= dict.fromkeys(names, f" ({each.unusable_reason})")
        else:
            known |= names
    missing = {
        lease.id: [
            f"{node.id}{why.get(str(node.id)) or why.get(node.address, '')}"
            for node in lease.nodes
            if tree is None or not (node.state.is_gone or {str(node.id), node.address} & known)
        ]
        for lease in leases
    }
    told = "; ".join(f"{', '.join(nodes)} (lease {lease_id})" for lease_id, nodes in missing.items() if nodes)
    return f"rented nodes have not joined the engine: {told}. Nothing is planned on others meanwhile" if told else ""


def hosts_of(
    leases: Iterable[Lease],
    *,
    slots: Mapping[str, int],
    port: int,
    joins_until_s: Mapping[LeaseId, float] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the nodes of leases that have an address, or are off, as the engine of hosts lists them, each once.

    Those that are gone as well: what still runs there is to be stopped, if it can be reached; those that are off by
    their cloud's word say so. ``slots`` are the
    accelerators of a node by shape; ``joins_until_s`` is until when a lease's nodes may still be coming up (Unix
    seconds). Raises ``SpecError`` for a shape that is not in ``slots``.
    """
    hosts: dict[str, dict[str, Any]] = {}
    for lease in leases:
        shape = lease.pool.shape
        if shape not in slots:
            hint = f"must say how many accelerators a node of {shape} has"
            raise SpecError(path=f"engine_options.hosts.slots.{shape}", hint=hint)
        for node in lease.nodes:
            name = _host_name(node)
            if name and (node.address or node.is_off):
                path = [lease.pool.region, lease.pool.zone or lease.pool.region, name]
                told = {"name": name, "address": node.address or name, "port": port, "slots": slots[shape]}
                off = {"off": True} if node.is_off else {}
                announces = {"cloud": lease.pool.cloud} if lease.pool.cloud in _ANNOUNCES else {}
                joins = {"joins_until_s": joins_until_s[lease.id]} if lease.id in joins_until_s else {}
                hosts[name] = {**told, **announces, **joins, **off, "path": path, "shape": shape}
    return list(hosts.values())


def _host_name(node: LeasedNode) -> str:
    """Return the cloud's own id where it can be a host's name, else the address; either is known (``only_rented``)."""
    return str(node.id) if _HOST_NAME.fullmatch(str(node.id)) else node.address
