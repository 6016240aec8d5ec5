"""Waits for a market in which a run can be had, at a price, by a time."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.provider.clouds import Clouds
    from airflow_llmsched.provider.rentals import CapacityRequest


class CapacitySensor(BaseSensorOperator):
    """Succeeds once an offer serves: of a shape asked for, with enough nodes, and below a price; XCom gets the quote.

    It rents nothing. Set ``timeout`` for the time by which it must be there.

    Args:
        clouds: as in ``ProvisionCapacityOperator``, like the next five.
        shapes: by node shape, how many nodes for how long.
        regions: only there.
        jurisdictions: only there.
        vendors: only theirs.
        capacity_types: only these.
        max_usd_per_hour: a node may cost this much at most.
        energy: what electricity and carbon count for beside the price: ``{"usd_per_t_co2": 100, "grids": {...}}``.
        deferrable: wait in the triggerer (default).
    """

    template_fields: Sequence[str] = (
        "clouds",
        "shapes",
        "regions",
        "jurisdictions",
        "vendors",
        "capacity_types",
        "max_usd_per_hour",
        "energy",
    )

    def __init__(
        self,
        *,
        clouds: Clouds,
        shapes: Mapping[str, Mapping[str, Any]],
        regions: Sequence[str] = (),
        jurisdictions: Sequence[str] = (),
        vendors: Sequence[str] = (),
        capacity_types: Sequence[str] = (),
        max_usd_per_hour: float | str | None = None,
        energy: Mapping[str, Any] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.clouds = clouds
        self.shapes = shapes
        self.regions = regions
        self.jurisdictions = jurisdictions
        self.vendors = vendors
        self.capacity_types = capacity_types
        self.max_usd_per_hour = max_usd_per_hour
        self.energy = energy
        self.deferrable = deferrable

    def poke(self, context: Context) -> PokeReturnValue | bool:
        """Look once."""
        found = self._look()
        return False if found is None else PokeReturnValue(is_done=True, xcom_value=found)

    def execute(self, context: Context) -> Any:
        """Wait here, or hand over to the triggerer when nothing serves yet."""
        if not self.deferrable:
            return super().execute(context)
        found = self._look()
        return self._wait(context) if found is None else found

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the quote the trigger saw; look again, and wait on, if it broke."""
        if "broken" in event:
            self.log.warning("the trigger broke: %s", event["broken"])
            found = self._look()
            return self._wait(context) if found is None else found
        if "quote" not in event:
            raise AirflowSensorTimeout(f"nothing served within {self.timeout:.0f} s: {event['market']}")
        quote: dict[str, Any] = event["quote"]
        return quote

    def _look(self) -> dict[str, Any] | None:
        from airflow_llmsched import codec
        from airflow_llmsched.provider.operators.base import failing_for_good
        from airflow_llmsched.provider.rental_watch import best_quote

        with failing_for_good():
            quote, words = best_quote(codec.to_plain(self._request()))
        if quote is None:
            self.log.info("nothing yet: %s", words)
        return quote

    def _request(self) -> CapacityRequest:
        from airflow_llmsched.provider.capacity_arguments import capacity_request, wishes_of

        return capacity_request(
            clouds=self.clouds,
            shapes=self.shapes,
            wishes=wishes_of(self),
            data=(),
            deadline_s=None,
            rework="0s",
            max_usd_per_hour=self.max_usd_per_hour,
            energy=self.energy,
        )

    def _wait(self, context: Context) -> NoReturn:
        from airflow_llmsched import codec
        from airflow_llmsched.provider.config import min_deferral_s
        from airflow_llmsched.provider.triggers.lease import CapacityTrigger

        until_s = context["ti"].start_date.timestamp() + self.timeout
        self.defer(
            trigger=CapacityTrigger(
                request=codec.to_plain(self._request()),
                poll_interval_s=self.poke_interval,
                until_s=until_s,
                not_before_s=time.time() + min_deferral_s(),
            ),
            method_name="resume",
            # Ours comes first, and says what the market was like.
            timeout=datetime.timedelta(seconds=max(0.0, until_s - time.time()) + 60.0),
        )
