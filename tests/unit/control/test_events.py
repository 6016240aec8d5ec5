"""Events are what the journal keeps for years: each has its own kind and survives JSON."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.domain.decision import Migrate
from airflow_llmsched.domain.identity import NodeId
from tests.support.sim_house import plan_of


def test_kinds_are_distinct_and_every_event_has_one() -> None:
    assert len(ev.EVENT_KINDS) == len(ev.EVENT_TYPES)
    assert {"opened", "launch_intended", "gang_ended", "released"} <= ev.EVENT_KINDS


@pytest.mark.parametrize(
    "event",
    [
        ev.PlanChosen(at_s=1.0, plan=plan_of(("n0", 2)), note="x"),
        ev.Decided(at_s=1.0, decision=Migrate(reason="away", excluded=(NodeId("n1"),))),
        ev.CheckpointChosen(at_s=1.0, checkpoint=None, skipped=(ev.SkippedCheckpoint(step=2, path="p", reason="r"),)),
        ev.PlanRefused(at_s=1.0, reason="full", retry_at_s=None),
    ],
)
def test_event_survives_json_as_a_member_of_the_union(event: ev.AnyEvent) -> None:
    assert codec.from_json(ev.Event, codec.to_json(event, ev.Event)) == event  # type: ignore[arg-type]


def test_field_of_a_newer_version_is_ignored_and_an_unknown_kind_is_not() -> None:
    assert codec.from_plain(ev.Event, {"kind": "woke", "at_s": 1.0, "why": "new"}) == ev.Woke(at_s=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        codec.from_plain(ev.Event, {"kind": "exploded", "at_s": 1.0})  # type: ignore[arg-type]
