"""Stops gangs, and gives back machines, that have outlived their runs: the net below leases and teardowns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_llmsched.errors import CouldNotLookError, LlmschedError
from airflow_llmsched.provider.operators.base import failing_for_good

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.control.reaper import Reap, Spare
    from airflow_llmsched.provider.clouds import Clouds


class ReapOperator(BaseOperator):
    """Reap what lives on an engine, or in clouds, although its run is over; by default, only say what would be reaped.

    So is what such a run still claims of an engine without a scheduler of its own, once nothing of it is alive.

    A gang of this deployment is stopped if it has expired, and its agents are silent, and Airflow calls its DAG run
    finished or does not know it. Whoever could not be asked is taken to object. A lease of this deployment is given
    back if it expired a minute ago: whoever needs one renews it long before. Schedule it in a DAG of its own
    (``dags/reap.py``), one task per engine.

    Args:
        engine: name of an engine adapter, of a cluster in the deployment's fleet file, or ``fleet`` for each of these;
            None looks at no engine.
        engine_options: its JSON-safe options, as in the pipelines that use it.
        clouds: options of each cloud adapter by its name, as in ``ProvisionCapacityOperator``.
        only_report: stop nothing. ``True`` by default; a template that renders to ``True`` or ``False`` will do.
        silence_s: seconds without any sign after which agents count as silent.
        unleased_s: seconds after its run's last record at which a gang without a lease expires.

    The task fails when something that was to be stopped does not end, or the engine, a cloud or a region of one could
    not be asked; it has then done what could be done.
    """

    template_fields: Sequence[str] = ("engine", "engine_options", "clouds", "only_report")
    ui_color = "#f3f3f3"

    def __init__(
        self,
        *,
        engine: str | None = "local",
        engine_options: Mapping[str, Any] | None = None,
        clouds: Clouds | None = None,
        only_report: bool | str = True,
        silence_s: float = 600.0,
        unleased_s: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.engine_options = dict(engine_options or {})
        self.clouds = clouds or {}
        self.only_report = only_report
        self.silence_s = silence_s
        self.unleased_s = unleased_s

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was, or would be, stopped and why, and what was spared and why."""
        from airflow_llmsched.provider.clouds import options_of
        from airflow_llmsched.provider.engine import engines_of

        only_report = is_true(self.only_report)
        result: dict[str, Any] = {"only_report": only_report, "reap": {}, "spared": {}, "stopped": []}
        troubles: list[str] = []
        errors: list[LlmschedError] = []
        with failing_for_good():
            with self._beside_others(errors):
                for engine in engines_of(self.engine) if self.engine else ():
                    with self._beside_others(errors):
                        self._reap_gangs(engine, result, troubles)
                    with self._beside_others(errors):
                        self._reap_claims(engine, result, troubles)
            with self._beside_others(errors):
                for cloud, options in options_of(self.clouds).items():
                    with self._beside_others(errors):
                        self._reap_leases(cloud, options, result, troubles)
            if troubles:
                raise CouldNotLookError("; ".join([*troubles, *map(str, errors)]))
            if errors:
                raise errors[0]
        return result

    @contextlib.contextmanager
    def _beside_others(self, errors: list[LlmschedError]) -> Iterator[None]:
        """Keep an error for the end: what is wrong with one engine or cloud keeps no machine of another."""
        try:
            yield
        except LlmschedError as error:
            self.log.error("%s", error)  # noqa: TRY400 - its words say it; the first one's story is the task's end
            errors.append(error)

    def _reap_gangs(self, engine: str, result: dict[str, Any], troubles: list[str]) -> None:
        from airflow_llmsched.control.reaper import ReaperLimits
        from airflow_llmsched.provider.reap_run import open_reaper

        limits = ReaperLimits(silence_s=self.silence_s, unleased_s=self.unleased_s)
        reaper = open_reaper(engine, self.engine_options, limits)
        try:
            findings = reaper.look()
        except CouldNotLookError as error:
            troubles.append(str(error))
            return
        for finding in findings:
            names = ", ".join(handle.key.name for handle in finding.handles)
            if self._note(result, finding.facts.run_key, names, finding.verdict):
                reaped = reaper.reap(finding)
                result["stopped"] += reaped.stopped
                troubles += [f"{reaped.run_key}: {reaped.trouble}"] if reaped.trouble else []

    def _reap_claims(self, engine: str, result: dict[str, Any], troubles: list[str]) -> None:
        from airflow_llmsched.control.reaper import ReaperLimits
        from airflow_llmsched.errors import TransientError
        from airflow_llmsched.provider.reap_run import open_claim_reapers

        limits = ReaperLimits(silence_s=self.silence_s, unleased_s=self.unleased_s)
        try:
            reapers = open_claim_reapers(engine, self.engine_options, limits)
            found = [(reaper, finding) for reaper in reapers for finding in reaper.look()]
        except TransientError as error:
            troubles.append(f"claims to {engine}: {error}")
            return
        for reaper, finding in found:
            name = f"claim:{finding.run}"
            if self._note(result, name, f"what {finding.run} claims of {engine}", finding.verdict):
                reaped = reaper.reap(finding)
                result["stopped"] += [name] if reaped.is_gone else []
                troubles += [f"{name}: {reaped.trouble}"] if reaped.trouble else []

    def _reap_leases(self, cloud: str, options: Mapping[str, Any], result: dict[str, Any], troubles: list[str]) -> None:
        from airflow_llmsched.errors import PartlySeenError, TransientError
        from airflow_llmsched.provider.reap_run import open_lease_reaper

        try:
            reaper = open_lease_reaper(cloud, options)
            findings = reaper.look()
        except PartlySeenError as error:
            self.log.error("%s: could not look everywhere: %s", cloud, error)  # noqa: TRY400 - its words say it
            troubles.append(f"{cloud}: could not look everywhere: {error}")
            findings = error.seen
        except TransientError as error:
            troubles.append(f"{cloud}: {error}")
            return
        for finding in findings:
            name = f"{cloud}:{finding.lease.id}"
            if self._note(result, name, name, finding.verdict):
                reaped = reaper.reap(finding)
                result["stopped"] += [name] if reaped.is_gone else []
                troubles += [f"{name}: {reaped.trouble}"] if reaped.trouble else []

    def _note(self, result: dict[str, Any], name: str, shown: str, verdict: Reap | Spare) -> bool:
        """Say what becomes of something, and why. Returns whether it is to be reaped now."""
        from airflow_llmsched.control.reaper import Reap

        condemned, only_report = isinstance(verdict, Reap), result["only_report"]
        said = "would reap" if only_report else "reaping"
        self.log.info("%s %s: %s", said if condemned else "sparing", shown, verdict.reason)
        result["reap" if condemned else "spared"][name] = verdict.reason
        return condemned and not only_report


def is_true(only_report: bool | str) -> bool:
    """Return whether to stop nothing: everything but a plain false is taken for yes."""
    return str(only_report).strip().lower() != "false"
