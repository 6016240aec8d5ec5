"""What the operators that run a gang share: one loop for the deferrable and the blocking path."""

from __future__ import annotations

import abc
import time
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.provider.links import RunReportLink
from airflow_llmsched.provider.operators.base import EngineOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.control.context import Failed, Outcome, Succeeded
    from airflow_llmsched.control.poller import WatchState
    from airflow_llmsched.provider.gang_run import GangSettings
    from airflow_llmsched.provider.run_scope import RunScope

DEADLINE_MARGIN_S = 60.0
"""Our own deadline lies this far below Airflow's ``execution_timeout``, whose end would run none of our code."""

KILL_LIMIT_S = 4.0
"""How long a worker that was told to end may take to end its gang. Airflow follows SIGTERM with SIGKILL after 5 s."""

MAX_BROKEN_WATCHES = 3
"""Watches in a row that may fail, in either mode, before the gang is stopped rather than left unwatched."""

_TRIGGER_FAILED = "__fail__"


class GangFailedError(AirflowFailException):
    """The gang was given up and its ranks are gone. Airflow must not retry: the run's own budgets are spent."""


class GangOperator(EngineOperator):
    """Base of the operators that run a gang.

    Subclasses say how to start, to take an event and to cancel, and what comes of it.

    Args:
        deferrable: watch in the triggerer (default) or here.
        poll_interval_s: seconds between two looks at the gang.
        lease_s: agents whose lease was not renewed for this long stop their ranks by themselves; None: never.
        capacity_wait_s: how long to wait for nodes before giving up.
        max_look_errors: failed looks in a row that are borne before the run is reconciled.

    Others as in ``EngineOperator``.
    """

    operator_extra_links = (RunReportLink(),)

    def __init__(
        self,
        *,
        deferrable: bool = True,
        poll_interval_s: float = 5.0,
        lease_s: float | None = 120.0,
        capacity_wait_s: float = 3600.0,
        max_look_errors: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.poll_interval_s = poll_interval_s
        self.lease_s = lease_s
        self.capacity_wait_s = capacity_wait_s
        self.max_look_errors = max_look_errors
        self._settings: GangSettings | None = None
        self._is_killed = False

    @abc.abstractmethod
    def start(self, settings: GangSettings) -> Outcome:
        """Begin, or go on with what another worker began."""

    @abc.abstractmethod
    def take(self, settings: GangSettings, event: Any, *, yielded_at_s: float) -> Outcome:
        """Act on a watcher's event."""

    @abc.abstractmethod
    def cancel(self, settings: GangSettings, reason: str) -> tuple[str, ...]:
        """End the generation's gang, and return its name as the engine knows it."""

    @abc.abstractmethod
    def result(self, context: Context, settings: GangSettings, outcome: Succeeded) -> dict[str, Any]:
        """Return the task's result."""

    @abc.abstractmethod
    def limits_s(self, scope: RunScope) -> list[float]:
        """Return the absolute times (Unix seconds) by which the spec wants this gang done."""

    def account(self, settings: GangSettings) -> None:
        """Record the gang's time for the run's ledger, once it has ended well or badly."""

    def reviewed(self, settings: GangSettings, context: Context) -> GangSettings:
        """Return the settings with what the gang is reviewed for while it runs: by default for nothing."""
        return settings

    @property
    @abc.abstractmethod
    def purpose(self) -> str:
        """Name by which a trigger knows how to end this gang (``provider.gang_watch.CANCEL``)."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the gang, or go on with it where another worker left it."""
        from airflow_llmsched.provider.run_spans import note_spans, queued

        started_s = now_s()
        scope = self.scope(context)
        with failing_for_good():
            note_spans(scope, queued(scope, until_s=started_s, label=self.task_id))
            settings = self._prepare(context, scope)
            return self._follow(context, settings, self.start(settings))

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Act on what the trigger handed over."""
        with failing_for_good():
            settings = self._prepare(context, self.scope(context))
            return self._follow(context, settings, self._take(settings, event))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Catch the ends that skip ``resume``: a trigger that Airflow could not run, and Airflow's own time limits.

        The gang is alive then and nobody watches it. A time limit ends it; anything else is reconciled and watched
        again.
        """
        if next_method != _TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        told = next_kwargs or {}
        error = told.get("error", "unknown")
        if error == TriggerFailureReason.TRIGGER_TIMEOUT:
            with failing_for_good():
                reason = "Airflow's time limit struck while nobody watched. Set budget.deadline in the spec instead"
                raise self._stopped(self._prepare(context, self.scope(context)), reason)
        story = "\n".join(told.get("traceback") or ()) or str(error)
        return self.resume(context, {"broken": story, "yielded_at_s": now_s()})

    def on_kill(self) -> None:
        """End this generation: the worker was told to stop because someone failed, cleared or ended the task.

        Once, and on a thread: Airflow may call it again while it is at work, kills the worker soon after, and calls it
        in a signal handler, where the task may hold the very lock that is needed. What does not end in time has its
        durable record, if it came that far, and is left to ``release``.
        """
        if self._settings is None or self._is_killed:
            return
        self._is_killed = True
        from airflow_llmsched.provider.gang_watch import KILLED
        from airflow_llmsched.provider.threads import DaemonThreads

        ending = DaemonThreads(1, name="llmsched-kill").submit(self.cancel, self._settings, KILLED)
        try:
            ending.result(KILL_LIMIT_S)
        except TimeoutError:
            self.log.warning("the gang has not ended %.0f s after it was told to: release sees to it", KILL_LIMIT_S)
        except Exception:
            self.log.exception("the gang may still be alive: release stops it")

    def _follow(self, context: Context, settings: GangSettings, outcome: Outcome) -> dict[str, Any]:
        while outcome.kind == "watch":
            if self.deferrable:
                self._hand_to_trigger(settings, outcome.state)
            outcome = self._take(settings, self._watch_here(settings, outcome.state))
        self.account(settings)
        if outcome.kind == "succeeded":
            return self.result(context, settings, outcome)
        tail = outcome.fault.log_tail if outcome.fault else ""
        shown = f"\nlast lines:\n{tail}" if tail and tail not in outcome.reason else ""
        raise GangFailedError(outcome.reason + self._whose_deadline(context, settings, outcome) + shown)

    def _whose_deadline(self, context: Context, settings: GangSettings, outcome: Failed) -> str:
        limit_s = self._execution_limit_s(context)
        if outcome.fault is not None or limit_s is None or limit_s != settings.deadline_s or now_s() < limit_s:
            return ""
        return f". The deadline is that of this task's execution_timeout ({self.execution_timeout}): raise that one"

    def _take(self, settings: GangSettings, payload: dict[str, Any]) -> Outcome:
        from airflow_llmsched import codec
        from airflow_llmsched.control.events import Handover
        from airflow_llmsched.provider.broken_watches import count_broken, forget_broken

        if "broken" not in payload:
            forget_broken(settings.scope, self.purpose)
            event = codec.from_plain(cast("Any", Handover), payload["handover"])
            return self.take(settings, event, yielded_at_s=float(payload["yielded_at_s"]))
        if count_broken(settings.scope, self.purpose, owner=settings.owner) >= MAX_BROKEN_WATCHES:
            raise self._stopped(settings, f"watching failed {MAX_BROKEN_WATCHES} times in a row: {payload['broken']}")
        self.log.warning("watching failed and starts again: %s", payload["broken"])
        return self.start(settings)

    def _stopped(self, settings: GangSettings, reason: str) -> GangFailedError:
        """End the gang, and return the error that names it."""
        names = self.cancel(settings, reason)
        return GangFailedError(f"stopped {', '.join(names) or 'before there was a gang'}: {reason}")

    def _hand_to_trigger(self, settings: GangSettings, watch: WatchState) -> None:
        from airflow_llmsched import codec
        from airflow_llmsched.provider.config import min_deferral_s
        from airflow_llmsched.provider.triggers.gang import GangTrigger

        self.defer(
            trigger=GangTrigger(
                purpose=self.purpose,
                settings=codec.to_plain(settings),
                watch=codec.to_plain(watch),
                settle_s=min_deferral_s(),
            ),
            method_name="resume",
        )

    def _watch_here(self, settings: GangSettings, watch: WatchState) -> dict[str, Any]:
        from airflow_llmsched import codec
        from airflow_llmsched.provider.gang_watch import GangWatch
        from airflow_llmsched.provider.triggers.gang import broken

        try:
            gang = GangWatch.open(codec.to_plain(settings), codec.to_plain(watch))
            while True:
                wait_s, event = gang.step()
                if event is not None:
                    return event
                time.sleep(wait_s)
        except Exception as error:  # as in the trigger, so that both modes end alike
            self.log.exception("the watch of this gang broke")
            return broken(error)

    def _prepare(self, context: Context, scope: RunScope) -> GangSettings:
        from airflow_llmsched.provider.engine import check_plain
        from airflow_llmsched.provider.gang_run import GangSettings
        from airflow_llmsched.provider.run_scope import generation_of

        check_plain(self.engine_options, path="engine_options")
        self._settings = GangSettings(
            scope=scope,
            engine=self.engine,
            engine_options=self.options_in(scope),
            generation=generation_of(context),
            owner=str(context["ti"].id),
            owner_since_s=_started_s(context),
            deadline_s=self._deadline_s(context, scope),
            poll_interval_s=self.poll_interval_s,
            lease_s=self.lease_s,
            capacity_wait_s=self.capacity_wait_s,
            max_look_errors=self.max_look_errors,
        )
        self._settings = self.reviewed(self._settings, context)
        return self._settings

    def _deadline_s(self, context: Context, scope: RunScope) -> float | None:
        limit_s = self._execution_limit_s(context)
        return min([*self.limits_s(scope), *([] if limit_s is None else [limit_s])], default=None)

    def _execution_limit_s(self, context: Context) -> float | None:
        if self.execution_timeout is None:
            return None
        timeout_s: float = self.execution_timeout.total_seconds()
        return _started_s(context) + timeout_s - min(DEADLINE_MARGIN_S, 0.2 * timeout_s)


def _started_s(context: Context) -> float:
    """Return when this try of the task started, in Unix seconds."""
    started_s: float = context["ti"].start_date.timestamp()
    return started_s
