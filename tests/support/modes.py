"""Terms of other modes than the plan's own, made up from shares of its nodes, prices and speed."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.planner.market.modes import reshaped
from airflow_llmsched.planner.market.values import SpotTerms


def elsewhere(
    terms: SpotTerms, *, demand_ratio: float, spot_ratio: float, changeover_s: float | None = None
) -> SpotTerms:
    """Return the terms of the same nodes in another place, priced against the plan's own place."""
    kept_s = terms.changeover_s if changeover_s is None else changeover_s
    return replace(terms, demand_ratio=demand_ratio, spot_ratio=spot_ratio, changeover_s=kept_s)


def scaled_down(terms: SpotTerms, *, nodes_ratio: float, speed_ratio: float) -> SpotTerms:
    """Return the terms of fewer nodes, each at the same price. ``speed_ratio`` is the share of speed they keep."""
    return reshaped(
        terms,
        speed_ratio=speed_ratio,
        demand_ratio=terms.demand_ratio * nodes_ratio,
        spot_ratio=terms.spot_ratio * nodes_ratio,
    )


def mixed(terms: SpotTerms, *, demand_nodes_ratio: float, demand_nodes_speed_ratio: float) -> SpotTerms:
    """Return the terms of a run that keeps a share of its nodes on demand, and seeks the others on the spot market.

    ``demand_nodes_speed_ratio`` is how fast it is with those alone. When spot capacity goes or comes, the gang changes
    its size, which takes a changeover.
    """
    return replace(
        terms,
        base_ratio=demand_nodes_ratio * terms.demand_ratio,
        base_speed_ratio=demand_nodes_speed_ratio,
        spot_ratio=demand_nodes_ratio * terms.demand_ratio + (1 - demand_nodes_ratio) * terms.spot_ratio,
    )
