from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from airflow_llmsched.clouds.aws import notices, tags
from airflow_llmsched.domain.lease import NodeNotice, NoticeKind


def event(words: str = "EC2 Spot Instance Interruption Warning", **changes: object) -> str:
    body: dict = {
        "detail-type": words,
        "time": "2026-11-29T21:00:00Z",
        "region": "eu-west-1",
        "detail": {"instance-id": "i-1", "instance-action": "terminate"},
    }
    return json.dumps({**body, **changes})


AT_S = datetime(2026, 11, 29, 21, tzinfo=UTC).timestamp()


def test_a_warning_comes_true_two_minutes_later_and_its_tag_says_when() -> None:
    told = notices.announcement(event())
    assert told is not None
    assert (told.instance_id, told.region, told.kind) == ("i-1", "eu-west-1", NoticeKind.INTERRUPTION)
    name, value = told.tag
    assert notices.tagged({name: value}) == [
        NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=AT_S + notices.SPOT_NOTICE_S)
    ]


def test_a_hint_says_no_time_and_does_not_overwrite_a_warning() -> None:
    hint = notices.announcement(event("EC2 Instance Rebalance Recommendation"))
    warning = notices.announcement(event())
    assert hint is not None
    assert warning is not None
    written = dict([warning.tag, hint.tag])
    kinds = {each.kind: each.effective_at_s for each in notices.tagged(written)}
    assert kinds == {NoticeKind.INTERRUPTION: AT_S + 120.0, NoticeKind.REBALANCE: None}


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        "[]",
        "{}",
        event("EC2 Instance State-change Notification"),
        event(time="yesterday"),
        event(detail={}),
        event(detail=None),
    ],
)
def test_what_announces_nothing_is_passed_over(body: str) -> None:
    assert notices.announcement(body) is None


def test_a_spot_request_that_is_marked_announces_too() -> None:
    marked = {"Status": {"Code": "marked-for-termination", "UpdateTime": datetime.fromtimestamp(AT_S, UTC)}}
    assert notices.of_request(marked) == NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=AT_S + 120.0)
    assert notices.of_request({"Status": {"Code": "marked-for-stop"}}) == NodeNotice(kind=NoticeKind.INTERRUPTION)
    assert notices.of_request({"Status": {"Code": "fulfilled"}}) is None
    assert notices.of_request({}) is None


def test_the_end_of_a_capacity_block_is_announced_when_it_is_near() -> None:
    written = {tags.BLOCK_ENDS: "10000"}
    assert notices.of_block(written, now_s=10_000.0 - notices.BLOCK_NOTICE_S - 1.0) is None
    near = NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=10_000.0)
    assert notices.of_block(written, now_s=10_000.0 - notices.BLOCK_NOTICE_S) == near
    assert notices.of_block({}, now_s=10_000.0) is None


def test_scheduled_events_are_announced_until_they_are_over() -> None:
    at = datetime.fromtimestamp(AT_S, UTC)
    row = {
        "Events": [
            {"Code": "system-reboot", "NotBefore": at, "Description": "The instance is scheduled for a reboot"},
            {"Code": "instance-retirement", "NotBefore": at},
            {"Code": "system-maintenance", "Description": "[Completed] maintenance"},
            {"Code": "instance-reboot", "Description": "[Canceled] reboot"},
            {"Code": "system-levitation"},
        ]
    }
    assert notices.scheduled(row) == [
        NodeNotice(kind=NoticeKind.MAINTENANCE, effective_at_s=AT_S),
        NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=AT_S),
        NodeNotice(kind=NoticeKind.MAINTENANCE),
    ]
    assert notices.scheduled({}) == []


def test_what_will_be_taken_counts_before_what_stops_and_the_soonest_first() -> None:
    hint, stop = NodeNotice(kind=NoticeKind.REBALANCE), NodeNotice(kind=NoticeKind.MAINTENANCE, effective_at_s=1.0)
    late = NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=900.0)
    soon = NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=100.0)
    assert notices.weightiest([hint, None, stop]) == stop
    assert notices.weightiest([late, hint, soon, stop]) == soon
    assert notices.weightiest([None]) is None


def test_a_tag_that_was_spoilt_announces_without_harm() -> None:
    assert notices.tagged({tags.INTERRUPTION: "soon"}) == [NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=0.0)]
