"""Waits for a checkpoint, in a worker, in the triggerer, or from the triggerer without any worker slot."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout
from airflow.triggers.base import StartTriggerArgs

if TYPE_CHECKING:
    from airflow.sdk import Context

CheckpointCheck = Callable[[dict[str, Any]], bool]

_TRIGGER = "airflow_llmsched.provider.triggers.checkpoint.CheckpointTrigger"


class CheckpointSensor(BaseSensorOperator):
    """Succeeds once a complete checkpoint of at least ``min_step`` exists; XCom gets it as a dict.

    Args:
        path: one checkpoint root (a string) or several.
        format: name of a checkpoint format, e.g. ``dcp`` or ``hf_trainer``.
        min_step: lowest step that counts.
        check: called with the checkpoint (a dict with step, path, format, ...) in every mode alike; the sensor goes on
            waiting for a newer checkpoint while it returns False.
        deferrable: wait in the triggerer.
        start_from_trigger: begin in the triggerer, so that waiting takes no worker slot at all.
    """

    template_fields: Sequence[str] = ("path", "min_step", "format")
    start_trigger_args = StartTriggerArgs(
        trigger_cls=_TRIGGER, trigger_kwargs={}, next_method="resume", next_kwargs=None, timeout=None
    )
    start_from_trigger = False

    def __init__(
        self,
        *,
        path: str | Sequence[str],
        format: str = "dcp",  # noqa: A002 - the term the user knows
        min_step: int = 0,
        check: CheckpointCheck | None = None,
        deferrable: bool = True,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.format = format
        self.min_step = min_step
        self.check = check
        self.deferrable = deferrable
        self.start_from_trigger = deferrable and start_from_trigger
        if self.start_from_trigger:
            # Replaced, not changed: the class attribute is shared by every task of this operator.
            self.start_trigger_args = dataclasses.replace(
                self.start_trigger_args,
                timeout=datetime.timedelta(seconds=self.timeout),
                trigger_kwargs={
                    "path": path,
                    "format": format,
                    "min_step": min_step,
                    "poll_interval_s": self.poke_interval,
                },
            )

    def poke(self, context: Context) -> PokeReturnValue | bool:
        """Look once."""
        found = self._look()
        return False if found is None else PokeReturnValue(is_done=True, xcom_value=found)

    def execute(self, context: Context) -> Any:
        """Wait here, or hand over to the triggerer when there is nothing yet."""
        if not self.deferrable:
            return super().execute(context)
        found = self._look()
        return self._wait(context, after_step=None) if found is None else found

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take the checkpoint the trigger saw, or wait for a newer one while ``check`` refuses it."""
        found: dict[str, Any] = event["checkpoint"]
        return found if self._accepts(found) else self._wait(context, after_step=int(found["step"]))

    def _look(self) -> dict[str, Any] | None:
        from airflow_llmsched.provider.checkpoints import newest_complete

        found = newest_complete(self.path, self.format, int(self.min_step))
        return found if found is not None and self._accepts(found) else None

    def _accepts(self, checkpoint: dict[str, Any]) -> bool:
        return self.check is None or bool(self.check(checkpoint))

    def _wait(self, context: Context, *, after_step: int | None) -> NoReturn:
        from airflow_llmsched.provider.triggers.checkpoint import CheckpointTrigger

        # ``timeout`` is for the whole wait, however often the check sends it on.
        waited_s = time.time() - context["ti"].start_date.timestamp()
        if waited_s >= self.timeout:
            raise AirflowSensorTimeout(f"no checkpoint that check accepts within {self.timeout:.0f} s")
        self.defer(
            trigger=CheckpointTrigger(
                path=self.path,
                format=self.format,
                min_step=int(self.min_step),
                poll_interval_s=self.poke_interval,
                after_step=after_step,
            ),
            method_name="resume",
            timeout=datetime.timedelta(seconds=self.timeout - waited_s),
        )
