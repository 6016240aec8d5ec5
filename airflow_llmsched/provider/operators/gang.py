"""Trains: acquires, launches, watches and recovers.

One operator owns it all, because a lost node must be replaceable
while the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow_llmsched.provider.operators.gang_base import GangOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.control.context import Outcome, Succeeded
    from airflow_llmsched.control.runs import RunDriver
    from airflow_llmsched.provider.gang_run import GangSettings
    from airflow_llmsched.provider.run_scope import RunScope


class RunGangOperator(GangOperator):
    """Train the run's workload as a gang, through preemptions and failures, until it is done, given up or cancelled.

    Deferrable or blocking, it ends in the same result or the same exception. Failures of the gang are retried by the
    spec's own budgets (``retries``), not by Airflow's: Airflow's retries only replace a worker that died, and find the
    gang again. Assets in ``outlets`` get an event with run key, checkpoint, step, loss and digest.

    With ``capacity`` a rental policy chooses what the run is trained on, for as long as it goes on: spot while it pays,
    on-demand so that the deadline is kept, another zone, region, shape or size, or nothing for a while. Where the spec
    sets ``budget.max_usd`` the money is judged, too, every ``review_interval``.

    Args:
        capacity: arguments of ``ProvisionCapacityOperator`` (clouds, shapes, ...) by name, ``wait`` being how long
            machines may take to come up, and ``changeover``, the time from leaving one place to training at full pace
            in another (default ``10min``). The spec must set a deadline or a budget in dollars.
        review_interval: how often the gang's place and its budget are judged.
        on_ask: called with the task's context, as Airflow's other callbacks are (a function or a notifier, or several),
            when the budget will not last and the spec has it ask (``budget.on_overrun``): once for each thing that is
            asked. ``context["llmsched_ask"]`` has ``run_key``, ``asks`` and the command that answers; the same is in
            the task's XCom ``asks`` until it is answered.

    Others as in ``GangOperator``.
    """

    template_fields: Sequence[str] = (*GangOperator.template_fields, "capacity")
    ui_color = "#fdf3e3"
    purpose = "train"

    def __init__(
        self,
        *,
        capacity: Mapping[str, Any] | None = None,
        review_interval: str = "10min",
        on_ask: Callable[[Context], Any] | Sequence[Callable[[Context], Any]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.capacity = capacity
        self.review_interval = review_interval
        self.on_ask = on_ask
        self._context: Context | None = None

    def reviewed(self, settings: GangSettings, context: Context) -> GangSettings:
        """Have the gang reviewed for what it costs, and for where it is."""
        from dataclasses import replace

        from airflow_llmsched.provider.capacity_arguments import duration_s
        from airflow_llmsched.provider.policy_arguments import policy_settings

        self._context = context
        every_s = duration_s(self.review_interval, path="review_interval")
        spec = self.workload(settings.scope)
        policy = None
        if self.capacity is not None:
            policy = policy_settings(self.capacity, settings, spec, purpose=self.task_id, tick_s=every_s)
        is_due = policy is not None or spec.budget.max_usd is not None
        return replace(settings, policy=policy, review_every_s=every_s if is_due else None)

    def start(self, settings: GangSettings) -> Outcome:
        """Begin the generation, or go on with it."""
        from airflow_llmsched.provider.gang_run import open_driver

        driver = open_driver(settings)
        outcome = driver.start()
        self._tell_of_queue(settings, driver, outcome, waited=False)
        return outcome

    def take(self, settings: GangSettings, event: Any, *, yielded_at_s: float) -> Outcome:
        """Act on a watcher's event."""
        from airflow_llmsched.provider.gang_run import open_driver

        driver = open_driver(settings)
        before = driver.state()
        asked = before.asks if event.kind == "review_due" else ""
        # A blocking watcher hands over to itself: there is no gap to record.
        outcome = driver.handle(event, yielded_at_s=yielded_at_s if self.deferrable else None)
        if event.kind == "review_due":
            self._tell(settings, driver.state().asks, before=asked)
        self._tell_of_queue(settings, driver, outcome, waited=before.queued is not None)
        return outcome

    def _tell_of_queue(self, settings: GangSettings, driver: RunDriver, outcome: Outcome, *, waited: bool) -> None:
        """Say in the log and in metrics how a run stands that waits, and that one which waited does so no more."""
        from airflow_llmsched.provider.metrics import gauge_queue

        if outcome.kind == "watch" and outcome.state.handle is None:
            state = driver.state()
            self.log.info("%s", state.reason)
            if state.queued is not None:
                at_s, start_s = state.queued.at_s, state.queued.start_s
                starts_in_s = None if start_s is None else max(0.0, start_s - at_s)
                gauge_queue(settings.scope.run_key, waits_s=at_s - state.queued.since_s, starts_in_s=starts_in_s)
                return
        if waited:
            gauge_queue(settings.scope.run_key, waits_s=0.0, starts_in_s=0.0)

    def _tell(self, settings: GangSettings, asks: str, *, before: str) -> None:
        """Say where people look what somebody is to decide, and call whoever wants to be called."""
        from airflow_llmsched.control.allowances import answer_command
        from airflow_llmsched.provider.metrics import gauge_asks

        run_key = settings.scope.run_key
        gauge_asks(run_key, asks=bool(asks))
        context = self._context
        if context is None or not (asks or before):
            return
        told = {"run_key": run_key, "asks": asks, "answer": answer_command(run_key) if asks else ""}
        context["ti"].xcom_push(key="asks", value=told)
        if asks:
            self.log.warning("the budget will not last: %s. Answer with: %s", asks, told["answer"])
        if not asks or before:
            return
        for call in [self.on_ask] if callable(self.on_ask) else self.on_ask:
            try:
                call(cast("Context", {**context, "llmsched_ask": told}))
            except Exception:
                self.log.exception("%r could not be told what the run asks", call)

    def cancel(self, settings: GangSettings, reason: str) -> tuple[str, ...]:
        """End the generation: a durable record first, then the stop."""
        from airflow_llmsched.provider.gang_run import open_driver

        driver = open_driver(settings)
        driver.cancel(reason)
        key = driver.state().key
        return (key.name,) if key.attempt else ()

    def limits_s(self, scope: RunScope) -> list[float]:
        """Return the spec's deadline, counted from the run's start."""
        deadline_s = self.workload(scope).budget.deadline_s
        return [] if deadline_s is None else [scope.started_at_s + deadline_s]

    def result(self, context: Context, settings: GangSettings, outcome: Succeeded) -> dict[str, Any]:
        """Return checkpoint, step, loss and digest, and announce them to the outlets."""
        from airflow_llmsched.provider.gang_result import gang_result
        from airflow_llmsched.provider.gang_run import checkpoint_format, open_driver

        formats = checkpoint_format(self.workload(settings.scope))
        result = {"run_key": settings.scope.run_key, **gang_result(open_driver(settings), outcome, formats)}
        self.log.info("run %s is trained: %s", settings.scope.run_key, result)
        told = {name: result[name] for name in ("run_key", "checkpoint", "step", "loss", "digest")}
        for asset in self.outlets:
            context["outlet_events"][asset].extra = told
        return result
