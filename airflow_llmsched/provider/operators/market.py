"""Keeps what clouds offer, with prices and date, for planning without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_llmsched.provider.operators.base import failing_for_good

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.provider.clouds import Clouds


class MarketSnapshotOperator(BaseOperator):
    """Ask clouds what they offer of some node shapes, and write it as ``market/snapshot-<time>.json``.

    Offers without a price are left out and counted. ``ProvisionCapacityOperator`` and ``CapacitySensor`` take prices
    that a cloud does not tell from the newest snapshot of the last day. Schedule it (``dags/refresh_market.py``).

    Args:
        clouds: options of each cloud adapter by its name (``conn_id`` names an Airflow connection); or names of clouds
            in the deployment's fleet file, ``"fleet"`` for all of them.
        shapes: names of node shapes.
        keep: how many snapshots to keep; older ones are deleted.
    """

    template_fields: Sequence[str] = ("clouds", "shapes")
    ui_color = "#fbf7e8"

    def __init__(self, *, clouds: Clouds, shapes: Sequence[str], keep: int = 200, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clouds = clouds
        self.shapes = shapes
        self.keep = keep

    def execute(self, context: Context) -> dict[str, Any]:
        """Return where the snapshot is, how many offers it holds, and what was left out, by count."""
        from airflow_llmsched.provider.clouds import options_of
        from airflow_llmsched.provider.market_run import take_snapshot

        with failing_for_good():
            taken = take_snapshot(options_of(self.clouds), self.shapes, keep=self.keep)
        for reason, count in taken["rejections"].items():
            self.log.warning("left out %d offers %s", count, reason)
        return taken
