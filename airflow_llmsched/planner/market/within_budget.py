"""What deadline a budget is good for: a run that has money instead of a date gets the soonest one it can afford. Pure.

Less time is dearer, because it leaves less of it to spot capacity. So the soonest deadline whose expected cost fits is
sought, and the run is then rented for like any other with a deadline. The expectation is over pools like those believed
in; that the money does hold is for ``budget`` to watch.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.market.forecast import HazardModel, first_belief
from airflow_llmsched.planner.market.values import SpotTerms, States, solve


def soonest_s(model: HazardModel, terms: SpotTerms, *, budget_s: float, is_up: bool | None = None) -> float | None:
    """Return the shortest time for which the run is expected to cost no more than ``budget_s``; None: there is none.

    ``budget_s`` is in seconds of the plan's on-demand capacity (``modes.seconds_of``), ``terms.time_s`` the longest
    time that would do. ``is_up`` is whether spot capacity is there now; None: as often as it is.
    """
    values = solve(model, terms)
    time_s_T = np.arange(len(values.cost_TSKW)) * values.cell_s
    cost_s_T = _mean_cost_s_T(model, values.at_all_times(terms.work_s), is_up=is_up)
    least_s = terms.work_s / terms.demand_speed_ratio + terms.changeover_s
    fits = np.flatnonzero((time_s_T >= least_s) & (cost_s_T <= budget_s))
    return float(time_s_T[fits[0]]) if len(fits) else None


def _mean_cost_s_T(model: HazardModel, cost_TSK: FloatArray, *, is_up: bool | None) -> FloatArray:
    """Return the expected cost by time left, holding nothing yet, over what pools are like."""
    first = first_belief(model, np.array([True, False]))
    phase = int(first.phase_N()[0])
    up_K, down_K = first.weight_NK
    cost_up_T = cost_TSK[:, States.IDLE_UP + phase] @ up_K
    cost_down_T = cost_TSK[:, States.IDLE_DOWN + phase] @ down_K
    share_up = float(model.prior_K @ model.availability_K()) if is_up is None else float(is_up)
    return np.asarray(share_up * cost_up_T + (1 - share_up) * cost_down_T)
