"""Rents machines ahead of a gang: the setup whose teardown is ``ReleaseOperator``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_llmsched.provider.operators.base import RunOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.domain.lease import Lease
    from airflow_llmsched.domain.workload import WorkloadSpec
    from airflow_llmsched.errors import LlmschedError
    from airflow_llmsched.provider.clouds import Clouds
    from airflow_llmsched.provider.rentals import RentalSettings, Tried
    from airflow_llmsched.provider.run_scope import RunScope


class ProvisionCapacityOperator(RunOperator):
    """Rent all nodes of the cheapest offer that can be had, or none; wait for capacity where there is none.

    The offers of all clouds are ranked by what the whole run would cost with each, at the newest prices known, and are
    tried in that order; a region whose quota is used up is passed over. Where a spec sets ``budget.max_usd``, nothing
    is rented with which the whole run would cost more, earlier rentals included. What an earlier try rented is taken
    up; what an earlier generation rented is given back first. From then on whoever watches the run's gang renews the
    lease; until one does, it lasts ``hold``. The lease goes to the run's folder (``lease-<task id>.json``), XCom gets
    its URI and a summary. Make it a setup of ``ReleaseOperator`` beside ``OpenRunOperator``.

    Args:
        clouds: options of each cloud adapter by its name (``conn_id`` names an Airflow connection); or names of clouds
            in the deployment's fleet file, ``"fleet"`` for all of them.
        shapes: by node shape, how many nodes the run takes and for how long: ``{"num_nodes": 4, "work": "36h"}``. What
            is not said is planned, if the spec has a model: for a shape that is only named, or without ``work``. Empty:
            every shape that the planner knows competes.
        regions: rent only there; empty: anywhere the spec's ``capacity`` allows, as with the next three.
        jurisdictions: e.g. ``["EU"]``.
        vendors: of accelerators, e.g. ``["nvidia"]``.
        capacity_types: among ``on_demand``, ``spot``, ``reserved``.
        data: what has to be where the nodes are: ``{"cloud", "region", "size", "egress_usd_per_gb", "gb_per_s"}`` each.
        rework: what one interruption costs in time, all told, e.g. ``20min``.
        max_usd_per_hour: a node may cost this much at most.
        energy: what electricity and carbon count for beside the price: ``{"usd_per_t_co2": 100, "grids": {...}}``.
        correlation: the share of a spot node's losses that take its whole pool with it: 0 to 1, 0.9 unless given.
        hold: how long a lease lasts without being renewed: at least twice ``[llmsched] handoff_limit``.
        wait: how long to wait for capacity, and for machines to come up, before giving back what came and failing.
        poll_interval_s: seconds between looks.
        deferrable: wait in the triggerer (default) or here.

    Others as in ``RunOperator``; ``retries`` is 3 unless given.
    """

    template_fields: Sequence[str] = (
        "clouds",
        "shapes",
        "regions",
        "jurisdictions",
        "vendors",
        "capacity_types",
        "data",
        "max_usd_per_hour",
        "energy",
    )
    ui_color = "#e8f7ee"

    def __init__(
        self,
        *,
        clouds: Clouds,
        shapes: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
        regions: Sequence[str] = (),
        jurisdictions: Sequence[str] = (),
        vendors: Sequence[str] = (),
        capacity_types: Sequence[str] = (),
        data: Sequence[Mapping[str, Any]] = (),
        rework: str = "20min",
        max_usd_per_hour: float | str | None = None,
        energy: Mapping[str, Any] | None = None,
        correlation: float | None = None,
        hold: str = "1h",
        wait: str = "1h",
        poll_interval_s: float = 30.0,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retries", 3)  # a cloud that does not answer at the first look may at the next
        super().__init__(**kwargs)
        self.clouds = clouds
        self.shapes = shapes
        self.regions = regions
        self.jurisdictions = jurisdictions
        self.vendors = vendors
        self.capacity_types = capacity_types
        self.data = data
        self.rework = rework
        self.max_usd_per_hour = max_usd_per_hour
        self.energy = energy
        self.correlation = correlation
        self.hold = hold
        self.wait = wait
        self.poll_interval_s = poll_interval_s
        self.deferrable = deferrable
        self._context: Context | None = None
        self._asked = ""

    def execute(self, context: Context) -> dict[str, Any]:
        """Rent, and return where the lease is written and what it is in short."""
        self._context = context
        with failing_for_good():
            settings = self._settings(context)
            until_s = now_s() + self._duration_s("wait", self.wait)
            return self._rent(settings, until_s=until_s, is_first=True)

    def resume(self, context: Context, event: dict[str, Any], until_s: float) -> dict[str, Any]:
        """Go on where the trigger stopped: whatever it saw, the book and the cloud say what there is."""
        self._context = context
        with failing_for_good():
            self.log.info("going on: %s", event)
            return self._rent(self._settings(context), until_s=until_s, is_first=False)

    def _rent(self, settings: RentalSettings, *, until_s: float, is_first: bool) -> dict[str, Any]:
        """Try until the lease is there whole, or time is up.

        The first look fails the task if nothing can be asked, so that a wrong connection is seen at once; later ones
        are tried again. The journal gets the last try as provisioning, and the wait before it.
        """
        from airflow_llmsched.domain.lease import LeaseState
        from airflow_llmsched.provider.lease_watch import BackgroundPasses, Watched

        leases = BackgroundPasses(Watched(scope=settings.scope))
        tried_s = now_s()
        try:
            while True:
                tried_s = now_s()
                tried = self._try(settings, is_first=is_first)
                self._ask(settings, tried.asks)
                if tried.lease is not None and tried.lease.state is LeaseState.ACTIVE:
                    return self._done(settings, tried.lease)
                self.log.info("not there yet: %s", tried.words)
                if now_s() >= until_s:
                    raise self._too_late(settings, tried)
                if self.deferrable:
                    self._hand_to_trigger(settings, until_s=until_s, pending=tried.lease is not None)
                is_first = False
                leases.tend()
                time.sleep(min(self.poll_interval_s, max(0.0, until_s - now_s())))
        finally:
            self._note(settings.scope, tried_s)

    def _try(self, settings: RentalSettings, *, is_first: bool) -> Tried:
        from airflow_llmsched.errors import TransientError
        from airflow_llmsched.provider.rentals import Tried, try_to_rent

        try:
            return try_to_rent(settings)
        except TransientError as error:
            if is_first:
                raise
            return Tried(refusal=error)

    def _ask(self, settings: RentalSettings, asks: str) -> None:
        """Say where people look what one of them might buy: a run spends no sum at once by itself."""
        if not asks or asks == self._asked:
            return
        self._asked = asks
        self.log.warning("something cheaper could be bought: %s", asks)
        if self._context is not None:
            told = {"run_key": settings.scope.run_key, "asks": asks}
            self._context["ti"].xcom_push(key="asks", value=told)

    def _note(self, scope: RunScope, tried_s: float) -> None:
        from airflow_llmsched.domain.ledger import Bucket, Span
        from airflow_llmsched.provider.run_spans import note_spans, queued

        waited = queued(scope, until_s=tried_s, label=self.task_id)
        note_spans(scope, waited, Span(bucket=Bucket.PROVISION, start_s=tried_s, end_s=now_s(), label=self.task_id))

    def _too_late(self, settings: RentalSettings, tried: Tried) -> LlmschedError:
        """Give back what is only half there, and return what to raise."""
        from airflow_llmsched.errors import CapacityError, QuotaError
        from airflow_llmsched.provider.rentals import open_renter

        open_renter(settings.scope).give_up(settings.purpose, reason="not whole in time")
        words = f"nothing was rented within {self.wait}: {tried.words}"
        if isinstance(tried.refusal, QuotaError):
            return QuotaError(words, region=tried.refusal.region)
        return CapacityError(words)

    def _done(self, settings: RentalSettings, lease: Lease) -> dict[str, Any]:
        from airflow_llmsched.provider import run_files

        stored = run_files.write(settings.scope, f"lease-{settings.purpose}.json", lease)
        pool = lease.pool
        return {
            **stored,
            "lease_id": lease.id,
            "cloud": pool.cloud,
            "region": pool.region,
            "zone": pool.zone,
            "shape": pool.shape,
            "capacity_type": str(pool.capacity_type),
            "num_nodes": lease.num_nodes,
            "expires_at_s": lease.expires_at_s,
        }

    def _hand_to_trigger(self, settings: RentalSettings, *, until_s: float, pending: bool) -> NoReturn:
        from airflow_llmsched import codec
        from airflow_llmsched.provider.config import min_deferral_s
        from airflow_llmsched.provider.triggers.lease import CapacityTrigger, LeaseTrigger

        trigger = (
            LeaseTrigger(
                settings=codec.to_plain(settings),
                poll_interval_s=self.poll_interval_s,
                until_s=until_s,
                settle_s=min_deferral_s(),
            )
            if pending
            else CapacityTrigger(
                request=codec.to_plain(settings.request),
                poll_interval_s=self.poll_interval_s,
                until_s=until_s,
                not_before_s=now_s() + max(self.poll_interval_s, min_deferral_s()),
            )
        )
        self.defer(trigger=trigger, method_name="resume", kwargs={"until_s": until_s})

    def _settings(self, context: Context) -> RentalSettings:
        from airflow_llmsched.provider.capacity_arguments import capacity_request, safe_hold_s, wishes_of
        from airflow_llmsched.provider.rentals import RentalSettings
        from airflow_llmsched.provider.run_scope import generation_of

        scope = self.scope(context)
        hold_s = safe_hold_s(self.hold)
        spec = self._spec_if_any(scope)
        deadline_s = spec.budget.deadline_s if spec is not None else None
        request = capacity_request(
            clouds=self.clouds,
            shapes=self.shapes,
            wishes=wishes_of(self),
            data=self.data,
            deadline_s=None if deadline_s is None else scope.started_at_s + deadline_s,
            rework=self.rework,
            max_usd_per_hour=self.max_usd_per_hour,
            energy=self.energy,
            correlation=self.correlation,
            spec=spec,
            scope=scope,
        )
        return RentalSettings(
            scope=scope,
            purpose=self.task_id,
            request=request,
            generation=generation_of(context),
            since_s=context["ti"].start_date.timestamp(),
            hold_s=hold_s,
        )

    def _spec_if_any(self, scope: RunScope) -> WorkloadSpec | None:
        """Return the run's spec, None where no run was opened: renting needs none. A damaged one might forbid it."""
        from airflow_llmsched.provider import run_files

        return run_files.read_spec(scope) if run_files.exists(scope, run_files.SPEC_FILE) else None

    def _duration_s(self, name: str, value: str) -> float:
        from airflow_llmsched.provider.capacity_arguments import duration_s

        return duration_s(value, path=name)
