from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp import record, render, sight
from airflow_llmsched.clouds.gcp.record import Way
from airflow_llmsched.clouds.gcp.sight import Gatherer, Seen
from airflow_llmsched.domain.lease import Lease, LeasedNodeState, LeaseState, NoticeKind
from tests.support.gcp_builders import AT_S, STAMP, described, disk, instance, place, spec

CONSISTENCY_S = 60.0
LATER_S = AT_S + 1000.0
N0, N1 = (record.node_name(place(), index) for index in range(2))


def seen(at_s: float = LATER_S, **parts: Any) -> Seen:
    return Seen(place=place(), at_s=at_s, **parts)


def lease(found: Seen) -> Lease:
    made = sight.lease(found, consistency_s=CONSISTENCY_S)
    assert made is not None
    return made


def both(**changes: Any) -> tuple[sight.Json, ...]:
    return (instance(0, spec(), **changes), instance(1, spec(), **changes))


def queued(**parts: Any) -> Seen:
    group = described(spec(way=Way.QUEUE), targetSize=0, status={"isStable": True}, **render.group_expiry(AT_S + 3600))
    return Seen(place=place(Way.QUEUE), at_s=LATER_S, **{"groups": (group,), **parts})


def request(state: str, **changes: Any) -> sight.Json:
    return {"name": place().name, "state": state, **changes}


def test_a_time_is_read_in_whatever_zone_google_writes_it() -> None:
    assert sight.parse_time_s(STAMP) == sight.parse_time_s(render.timestamp(AT_S)) == AT_S


def test_a_lease_is_what_its_machines_say() -> None:
    made = lease(seen(machines=both()))
    assert (made.id, made.state, made.num_nodes) == (place().id, LeaseState.ACTIVE, 2)
    assert made.pool == spec().pool
    assert made.origin == spec().origin
    assert [(node.id, node.address) for node in made.nodes] == [(N0, "10.0.0.0"), (N1, "10.0.0.1")]


def test_machines_that_boot_are_on_their_way() -> None:
    assert lease(seen(machines=both(status="STAGING"))).state is LeaseState.PENDING


def test_the_latest_expiry_counts_because_a_renewal_may_have_reached_only_some() -> None:
    renewed = {**record.labels(spec(), expires_at_s=AT_S + 9999.0)}
    made = lease(seen(machines=(instance(0, spec()), instance(1, spec(), labels=renewed))))
    assert made.expires_at_s == AT_S + 9999.0


def test_without_a_label_the_first_expiry_counts() -> None:
    assert lease(seen(machines=both(labels={}))).expires_at_s == spec().expires_at_s


def test_a_machine_that_is_not_listed_yet_is_on_its_way_and_later_it_is_lost() -> None:
    one = (instance(0, spec()),)
    young, old = lease(seen(AT_S + 59.0, machines=one)), lease(seen(AT_S + 61.0, machines=one))
    assert (young.state, young.nodes[1].state) == (LeaseState.PENDING, LeasedNodeState.STARTING)
    assert (old.state, old.nodes[1].state) == (LeaseState.BROKEN, LeasedNodeState.LOST)
    assert [node.is_off for node in (*young.nodes, *old.nodes)] == [False, False, False, True]
    assert N1 in old.reason


def test_a_preempted_machine_is_told_from_a_lost_one_stopped_or_deleted() -> None:
    """Field case E13."""
    stopped = lease(seen(machines=both(status="TERMINATED"), preempted=frozenset({N0})))
    assert [node.state for node in stopped.nodes] == [LeasedNodeState.PREEMPTED, LeasedNodeState.LOST]
    deleted = lease(seen(machines=(instance(0, spec()),), preempted=frozenset({N1})))
    assert [node.state for node in deleted.nodes] == [LeasedNodeState.RUNNING, LeasedNodeState.PREEMPTED]
    assert deleted.state is LeaseState.BROKEN
    assert [node.is_off for node in (*stopped.nodes, *deleted.nodes)] == [True, True, False, True]


@pytest.mark.parametrize("status", ["STOPPING", "SUSPENDED", "REPAIRING", "RUNNING"])
def test_a_machine_that_still_runs_or_may_go_on_is_not_off(status: str) -> None:
    assert not any(node.is_off for node in lease(seen(machines=both(status=status))).nodes)


def test_a_disk_that_stayed_when_its_machine_went_is_left_over() -> None:
    """Field case E15."""
    made = lease(seen(disks=(disk(0, spec()), disk(1, spec(), users=("n1",)))))
    assert made.leftovers == (f"zones/us-central1-a/disks/{N0}",)
    assert made.state is LeaseState.BROKEN


def test_what_is_left_without_machines_is_named_and_to_be_released() -> None:
    made = lease(seen(policies=(described(spec()),)))
    assert made.state is LeaseState.BROKEN
    assert made.leftovers == (f"regions/us-central1/resourcePolicies/{place().name}",)


def test_a_shutdown_with_grace_and_a_planned_maintenance_are_noticed_and_end_nothing() -> None:
    """Field case E21: a hint ends no lease."""
    planned = {"upcomingMaintenance": {"windowStartTime": STAMP}}
    made = lease(
        seen(machines=(instance(0, spec(), status="PENDING_STOP"), instance(1, spec(), resourceStatus=planned)))
    )
    first, second = (node.notice for node in made.nodes)
    assert first is not None
    assert (first.kind, first.effective_at_s) == (NoticeKind.INTERRUPTION, None)
    assert second is not None
    assert (second.kind, second.effective_at_s) == (NoticeKind.MAINTENANCE, AT_S)
    assert made.state is LeaseState.ACTIVE


@pytest.mark.parametrize(
    ("parts", "state", "told"),
    [
        ({}, LeaseState.BROKEN, "never made"),
        ({"requests": (request("ACCEPTED"),)}, LeaseState.PENDING, "waits"),
        ({"requests": (request("CREATING"),)}, LeaseState.PENDING, "waits"),
        (
            {"requests": (request("FAILED", status={"error": {"errors": [{"code": "QUOTA_EXCEEDED"}]}}),)},
            LeaseState.BROKEN,
            "QUOTA_EXCEEDED",
        ),
        ({"requests": (request("CANCELLED"),)}, LeaseState.BROKEN, "CANCELLED"),
        ({"requests": (request("SUCCEEDED"),)}, LeaseState.BROKEN, "0 of 2"),
    ],
)
def test_a_queued_lease_is_what_its_request_says(parts: dict[str, Any], state: LeaseState, told: str) -> None:
    made = lease(queued(**parts))
    assert made.state is state
    assert told in made.reason


def test_a_group_that_still_fills_is_waited_for() -> None:
    filling = described(spec(way=Way.QUEUE), targetSize=2, status={"isStable": False})
    made = lease(queued(groups=(filling,), requests=(request("SUCCEEDED"),)))
    assert made.state is LeaseState.PENDING


def test_the_expiry_of_a_queued_lease_is_its_groups() -> None:
    renewed = described(spec(way=Way.QUEUE), **render.group_expiry(AT_S + 7777.0))
    assert lease(queued(groups=(renewed,))).expires_at_s == AT_S + 7777.0


def test_what_is_not_ours_is_left_aside() -> None:
    gatherer = Gatherer(at_s=AT_S)
    gatherer.add("machines", [{"name": "ls-web-1", "creationTimestamp": STAMP}, instance(0, spec())])
    gatherer.add("policies", [{"name": "ls-theirs", "description": "keep"}])
    assert list(gatherer.parts) == [place()]
    assert [each["name"] for each in gatherer.seen(place()).machines] == [N0]
    assert sight.lease(Seen(place=place(), at_s=AT_S), consistency_s=1.0) is None


def test_operations_are_asked_only_when_a_machine_is_gone() -> None:
    assert not sight.needs_causes(seen(machines=both()))
    assert sight.needs_causes(seen(machines=both(status="STOPPING")))
    assert sight.needs_causes(seen(machines=both()[:1]))
    assert not sight.needs_causes(queued(requests=(request("ACCEPTED"),)))


def test_everything_there_is_has_the_path_by_which_it_is_found() -> None:
    found = queued(requests=(request("ACCEPTED"),), templates=(described(spec(way=Way.QUEUE)),))
    name = place().name
    assert sight.everything(found) == (
        f"zones/us-central1-a/instanceGroupManagers/{name}/resizeRequests/{name}",
        f"zones/us-central1-a/instanceGroupManagers/{name}",
        f"regions/us-central1/instanceTemplates/{name}",
    )


def test_a_lease_that_is_asked_for_is_pending_with_all_that_is_known() -> None:
    made = sight.pending(spec())
    assert (made.state, made.nodes, made.expires_at_s) == (LeaseState.PENDING, (), spec().expires_at_s)
    assert made.origin == spec().origin
    assert replace(made, reason="") == replace(sight.pending(spec()), reason="")
