"""What hazards watched on some nodes say of a gang of more: it is lost with any node, and back with the last. Pure.

Assumed (Marshall and Olkin 1967): a node is lost by a shock of its own or by one of the whole pool, and ``correlation``
is the pool's share of both its losses and the time that it is away; ``domain.capacity.DEFAULT_CORRELATION`` says what
is known of it. Then, with ``l`` losses an hour of one node, ``a`` the share of time that it is up and ``r`` the
correlation,

    a gang of N is lost  l (r + (1 - r) N)  times an hour                              (:func:`loss_ratio`)
    and is up for        c (a / c) ** N  of the time,  c = 1 - r (1 - a)               (:func:`joint_availability`)

The share of time up is mean time up over mean time up and down. So the time that a gang is away follows from both, and
its return hazard is that of one node, scaled to last as long. This is done for each class of pool; how hazards fall
with age, and differ by the hour, stays as it was. With a correlation of 1 a gang is as one node.

Axes: see ``forecast``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.market.forecast import NO_SPOT, HazardModel, mean_spell_s

_LEAST_RETURN_PER_S = float(NO_SPOT.return_per_s_KF.max())
_NUM_HALVINGS = 64
_WIDEST_LOG = 60.0


def of_gang(model: HazardModel, num_nodes: int, *, correlation: float) -> HazardModel:
    """Return the hazards of ``num_nodes`` together, from those of ``model.num_nodes`` together.

    Capacity that a gang has no chance to see comes back no sooner than where there is none (``NO_SPOT``), so that all
    rates stay above 0 and finite whatever the count.

    Raises:
        SpecError: there are no nodes, or the correlation is not between 0 and 1.
    """
    loss_ratio_now = loss_ratio(num_nodes, correlation=correlation)
    if num_nodes == model.num_nodes:
        return model
    loss_KF = model.loss_per_s_KF * (loss_ratio_now / loss_ratio(model.num_nodes, correlation=correlation))

    def watched_K(alone_K: FloatArray) -> FloatArray:
        return joint_availability(alone_K, model.num_nodes, correlation=correlation)

    alone_K = _halved(watched_K, model.availability_K(), low=0.0, high=1.0)
    up_ratio_K = joint_availability(alone_K, num_nodes, correlation=correlation)
    with np.errstate(divide="ignore"):
        back_per_s_K = up_ratio_K / (1 - up_ratio_K) / mean_spell_s(loss_KF)

    def scaled_KF(log_K: FloatArray) -> FloatArray:
        return np.asarray(np.maximum(model.return_per_s_KF * np.exp(log_K)[:, None], _LEAST_RETURN_PER_S))

    log_K = _halved(lambda log_K: 1 / mean_spell_s(scaled_KF(log_K)), back_per_s_K, low=-_WIDEST_LOG, high=_WIDEST_LOG)
    return replace(model, loss_per_s_KF=loss_KF, return_per_s_KF=scaled_KF(log_K), num_nodes=num_nodes)


def loss_ratio(num_nodes: int | FloatArray, *, correlation: float) -> FloatArray:
    """Return how many times as often as one node ``num_nodes`` together lose one.

    Raises:
        SpecError: there are no nodes, or the correlation is not between 0 and 1.
    """
    if not 0 <= correlation <= 1:
        raise SpecError(path="correlation", value=correlation, hint="must be between 0 and 1")
    if not np.all(np.asarray(num_nodes) >= 1):
        raise SpecError(path="num_nodes", value=num_nodes, hint="must be at least 1")
    return np.asarray(correlation + (1 - correlation) * np.asarray(num_nodes, dtype=np.float64))


def joint_availability(availability: float | FloatArray, num_nodes: int, *, correlation: float) -> FloatArray:
    """Return the probability that a pool has room for all ``num_nodes`` when it has room for one with ``availability``.

    A common shock takes the pool as a whole with share ``correlation`` of the unavailability; what is left strikes
    node by node. 1 makes the gang as available as one node, 0 makes nodes independent.
    """
    alone = np.asarray(availability, dtype=np.float64)
    common = 1 - correlation * (1 - alone)
    rest = np.divide(alone, common, out=np.zeros_like(alone), where=common > 0)
    return np.asarray(common * rest**num_nodes)


def _halved(rises: Callable[[FloatArray], FloatArray], wanted_K: FloatArray, *, low: float, high: float) -> FloatArray:
    """Return for each class where a rising function comes to what is wanted, by halving (K,)."""
    low_K, high_K = np.full_like(wanted_K, low), np.full_like(wanted_K, high)
    for _ in range(_NUM_HALVINGS):
        middle_K = (low_K + high_K) / 2
        is_below_K = rises(middle_K) < wanted_K
        low_K, high_K = np.where(is_below_K, middle_K, low_K), np.where(is_below_K, high_K, middle_K)
    return np.asarray((low_K + high_K) / 2)
