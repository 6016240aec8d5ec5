"""Waiting for Google's operations: with a bound, by the clock, and with the causes that an answer leaves out."""

from __future__ import annotations

from typing import Any

from airflow_llmsched.clouds.gcp import states
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.states import NativeError, Reaction
from airflow_llmsched.ports import Clock

POLL_S = 2.0
MAX_POLL_S = 15.0


class Waiter:
    """Waits for operations of one client."""

    def __init__(self, client: ComputeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    def wait(self, operation: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
        """Return the operation once it is done, or as it stands after ``limit_s``. Raises as ``Transport.call``."""
        give_up_at_s, pause_s = self._clock.now_s() + limit_s, POLL_S
        while operation.get("status") != "DONE" and self._clock.now_s() < give_up_at_s:
            self._clock.sleep(pause_s)
            pause_s = min(1.5 * pause_s, MAX_POLL_S)
            operation = self._client.operation(operation)
        return operation

    def causes(self, zone: str, operation: dict[str, Any]) -> tuple[NativeError, ...]:
        """Return why an operation failed; nothing: it did not.

        A bulk insert may say no more than that too few machines came: why is then in the operations it is made up of.
        """
        errors = states.operation_errors(operation)
        group_id = operation.get("operationGroupId", "")
        if not errors or not group_id or states.reaction(errors) is not Reaction.SUMMARY:
            return errors
        parts = self._client.operations_in(zone, group_id)
        return errors + tuple(
            each
            for part in parts
            if part.get("name") != operation.get("name")
            for each in states.operation_errors(part)
        )
