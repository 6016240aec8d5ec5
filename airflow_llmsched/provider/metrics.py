"""What runs rent, ask and wait for, as gauges in Airflow's own metrics (what ``[metrics]`` of its configuration names).

The Task SDK's metrics are set up in workers only; triggerers set up Airflow's own, which are no public interface. So
they are set up here, once in each process, the way a worker does it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from airflow_llmsched.control.spending import Spend
from airflow_llmsched.domain.identity import RunKey

log = logging.getLogger(__name__)


def gauge_rentals(run: RunKey, spend: Spend, *, num_open: int) -> None:
    """Set the gauges of what a run has rented: dollars so far, dollars an hour, and leases that have not ended.

    A back end that fails fails nothing else.
    """
    _set(run, {"rented_usd": spend.usd, "rented_usd_per_hour": spend.usd_per_hour, "open_leases": num_open})


def gauge_asks(run: RunKey, *, asks: bool) -> None:
    """Set the gauge of whether a run asks about its budget: 1 or 0. A back end that fails fails nothing else."""
    _set(run, {"budget_asks": int(asks)})


def gauge_queue(run: RunKey, *, waits_s: float, starts_in_s: float | None) -> None:
    """Set the gauges of a run in the queue, in seconds: how long it has waited, and until it is expected to start.

    Both are 0 once it waits no more; the second is not set while nobody knows. A failing back end fails nothing else.
    """
    known = {} if starts_in_s is None else {"queue_starts_in_s": starts_in_s}
    _set(run, {"queue_waits_s": waits_s, **known})


def _set(run: RunKey, gauges: Mapping[str, float]) -> None:
    from airflow.sdk.observability import stats  # noqa: PLC0415 - slow

    try:
        _set_up()
        for name, value in gauges.items():
            stats.gauge(f"llmsched.{name}.{run}", value)
    except Exception:  # whatever a back end may raise: what is rented must be kept, and given back
        log.exception("the metrics of run %s could not be set", run)


@functools.cache
def _set_up() -> None:
    from airflow.sdk.configuration import conf  # noqa: PLC0415 - slow
    from airflow.sdk.observability import stats  # noqa: PLC0415 - slow
    from airflow.sdk.observability.metrics import stats_utils  # noqa: PLC0415 - slow

    stats.initialize(
        factory=stats_utils.get_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on")
    )
