"""What a run is planned on: what it has rented, if it has, else whatever its engine has free."""

from __future__ import annotations

from airflow_llmsched.control.rented_nodes import at_terms, only_rented
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.rentals import open_renter
from airflow_llmsched.provider.run_scope import RunScope


def tree_of(scope: RunScope, hook: PlacementHook) -> TopologyTree:
    """Return the nodes to plan on. Raises ``CouldNotLookError``, ``StoreError``."""
    return rented_tree(scope, hook) or hook.topology()


def rented_tree(scope: RunScope, hook: PlacementHook) -> TopologyTree | None:
    """Return the nodes that the run has rented, None without any.

    Those that the engine has are taken from there, as it knows which of their slots are free. Those that have yet to
    join it are taken from their cloud, if the planner knows their shape. Raises ``CouldNotLookError``, ``StoreError``.
    """
    renter = open_renter(scope)
    leases = renter.active()
    joined = only_rented(hook.topology(), leases, terms_of=renter.terms_of) if leases else None
    if joined is not None:
        return joined
    coming = [lease for lease in leases if lease.pool.shape in node_shapes()]
    return at_terms(renter.topology(coming[-1]), renter.terms_of(coming[-1])) if coming else None
