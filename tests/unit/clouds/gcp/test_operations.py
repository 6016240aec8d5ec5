from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.clouds.gcp.operations import Waiter
from airflow_llmsched.sim.clock import VirtualClock


class Client:
    """What a waiter asks: an operation that is done at ``done_at_s``, and the operations that one is made up of."""

    def __init__(self, clock: VirtualClock, *, done_at_s: float, parts: list[dict[str, Any]] | None = None) -> None:
        self._clock = clock
        self._done_at_s = done_at_s
        self._parts = parts or []
        self.num_looks = 0
        self.groups: list[str] = []

    def operation(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        self.num_looks += 1
        return {**operation, "status": "DONE" if self._clock.now_s() >= self._done_at_s else "RUNNING"}

    def operations_in(self, _zone: str, group_id: str) -> list[dict[str, Any]]:
        self.groups.append(group_id)
        return self._parts


def errors(*codes: str) -> dict[str, Any]:
    return {"error": {"errors": [{"code": code, "message": "m"} for code in codes]}}


def causes(operation: dict[str, Any], parts: list[dict[str, Any]] | None = None) -> tuple[list[str], list[str]]:
    clock = VirtualClock()
    client = Client(clock, done_at_s=0.0, parts=parts)
    found = Waiter(client, clock).causes("z", operation)  # type: ignore[arg-type]  # as much of one as a waiter uses
    return [each.code for each in found], client.groups


def test_an_operation_is_waited_for_and_not_asked_for_often() -> None:
    clock = VirtualClock()
    client = Client(clock, done_at_s=clock.now_s() + 300.0)
    done = Waiter(client, clock).wait({"status": "RUNNING"}, limit_s=900.0)  # type: ignore[arg-type]  # as above
    assert done["status"] == "DONE"
    assert client.num_looks < 30


def test_one_that_does_not_end_is_given_back_as_it_stands() -> None:
    clock = VirtualClock()
    before_s = clock.now_s()
    client = Client(clock, done_at_s=before_s + 1e6)
    undone = Waiter(client, clock).wait({"status": "PENDING"}, limit_s=100.0)  # type: ignore[arg-type]  # as above
    assert undone["status"] == "RUNNING"
    assert 100.0 <= clock.now_s() - before_s < 120.0


def test_one_that_is_done_is_not_asked_for() -> None:
    clock = VirtualClock()
    client = Client(clock, done_at_s=0.0)
    Waiter(client, clock).wait({"status": "DONE"}, limit_s=100.0)  # type: ignore[arg-type]  # as above
    assert client.num_looks == 0


def test_why_too_few_came_is_in_the_operations_that_the_whole_is_made_of() -> None:
    whole = {"name": "whole", "operationGroupId": "g", **errors("VM_MIN_COUNT_NOT_REACHED")}
    parts = [whole, {"name": "p0"}, {"name": "p1", **errors("QUOTA_EXCEEDED")}]
    assert causes(whole, parts) == (["VM_MIN_COUNT_NOT_REACHED", "QUOTA_EXCEEDED"], ["g"])


def test_what_says_why_itself_is_not_asked_further() -> None:
    assert causes({"operationGroupId": "g"}) == ([], [])
    assert causes({"operationGroupId": "g", **errors("STOCKOUT")}) == (["STOCKOUT"], [])
    assert causes(errors("VM_MIN_COUNT_NOT_REACHED")) == (["VM_MIN_COUNT_NOT_REACHED"], [])
