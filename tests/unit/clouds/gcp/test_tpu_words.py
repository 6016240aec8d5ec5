from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp import record, states, tpu_words
from airflow_llmsched.clouds.gcp.record import Record, Way
from airflow_llmsched.clouds.gcp.tpu_words import SeenSlices, Slice
from airflow_llmsched.domain.lease import Lease, LeasedNodeState, LeaseState, NoticeKind
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CapacityError, InternalError, LlmschedError, QuotaError, SpecError
from tests.support.gcp_builders import AT_S, STAMP, place, spec
from tests.support.google_discovery import discovery

TPU = discovery("tpu.v2")
PARENT = "projects/p/locations/us-central1-a"
LATER_S = AT_S + 1000.0
PLAIN = Slice(runtime_version="v2-alpha")
RICH = Slice(
    runtime_version="v2-alpha",
    network={"network": "n", "enableExternalIps": False},
    service_account="trainer@llm.iam.gserviceaccount.com",
    metadata={"startup-script": "#!/bin/sh"},
)


def asked(kind: CapacityType = CapacityType.ON_DEMAND, *, num_nodes: int = 2) -> Record:
    return replace(spec(kind, num_nodes=num_nodes, way=Way.TPU), shape="v5litepod-16")


def request(state: str, *, of: Record | None = None, **more: Any) -> dict[str, Any]:
    body = tpu_words.queued_resource(of or asked(), slice_=PLAIN, parent=PARENT)
    return {
        **body,
        "name": f"{PARENT}/queuedResources/{place().name}",
        "createTime": STAMP,
        "state": {"state": state, **more},
    }


def slice_(index: int, state: str = "READY", **more: Any) -> dict[str, Any]:
    node = request("ACTIVE")["tpu"]["nodeSpec"][0]["node"]
    return {
        **node,
        "name": f"{PARENT}/nodes/{tpu_words.slice_name(place(), index)}",
        "createTime": STAMP,
        "state": state,
        "networkEndpoints": [{"ipAddress": f"10.9.0.{index}"}, {"ipAddress": "10.9.9.9"}],
        **more,
    }


def lease(*requests: dict[str, Any], slices: tuple[dict[str, Any], ...] = (), at_s: float = LATER_S) -> Lease:
    seen = SeenSlices(place=place(Way.TPU), at_s=at_s, requests=requests, slices=slices)
    made = tpu_words.lease(seen, consistency_s=60.0)
    assert made is not None
    return made


@pytest.mark.parametrize("kind", CapacityType)
@pytest.mark.parametrize("made_of", [PLAIN, RICH])
@pytest.mark.parametrize("num_nodes", [1, 4])
def test_googles_own_description_allows_every_request(kind: CapacityType, made_of: Slice, num_nodes: int) -> None:
    body = tpu_words.queued_resource(asked(kind, num_nodes=num_nodes), slice_=made_of, parent=PARENT)
    assert list(TPU.problems({"$ref": "QueuedResource"}, body, is_request=True)) == []
    assert ("spot" in body, "guaranteed" in body) == (kind is CapacityType.SPOT, kind is CapacityType.RESERVED)
    (node_spec,) = body["tpu"]["nodeSpec"]
    assert ("nodeId" in node_spec) is (num_nodes == 1)
    assert ("multisliceParams" in node_spec) is (num_nodes > 1)


def test_every_word_of_googles_has_a_meaning() -> None:
    known = TPU.schemas["QueuedResourceState"]["properties"]["state"]["enum"]
    assert set(tpu_words.QUEUED_STATE) == set(known) - {"STATE_UNSPECIFIED"}
    assert set(tpu_words.SLICE_STATE) == set(TPU.schemas["Node"]["properties"]["state"]["enum"]) - {"STATE_UNSPECIFIED"}
    assert set(tpu_words.RPC_CODE.values()) <= set(states.REACTION)


def test_a_request_says_whose_it_is_in_what_it_asks_for() -> None:
    assert tpu_words.record_of(request("ACCEPTED")) == asked()
    assert tpu_words.place_of(slice_(0)) == place(Way.TPU)
    assert tpu_words.place_of({"name": "x", "metadata": {"owner": "them"}}) is None


def test_a_request_that_waits_ends_by_itself_at_its_expiry() -> None:
    body = request("ACCEPTED")
    assert body["queueingPolicy"] == {"validUntilTime": "2025-06-15T16:06:40Z"}
    assert lease(body).expires_at_s == asked().expires_at_s == AT_S + 3600.0


def test_a_request_may_wait_longer_than_its_lease_and_says_so() -> None:
    patient = replace(PLAIN, queue_s=90_000.0)
    assert tpu_words.expires_at_s(AT_S + 60.0, slice_=patient, now_s=AT_S) == AT_S + 90_000.0
    assert tpu_words.expires_at_s(AT_S + 99_000.0, slice_=patient, now_s=AT_S) == AT_S + 99_000.0


@pytest.mark.parametrize("state", ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"])
def test_a_request_that_waits_is_pending_and_named(state: str) -> None:
    made = lease(request(state))
    assert (made.state, made.nodes) == (LeaseState.PENDING, ())
    assert made.leftovers == (f"locations/us-central1-a/queuedResources/{place().name}",)


def test_a_lease_is_active_when_all_of_its_slices_are_ready() -> None:
    made = lease(request("ACTIVE"), slices=(slice_(0), slice_(1)))
    assert (made.state, made.leftovers) == (LeaseState.ACTIVE, ())
    assert [(node.id, node.address) for node in made.nodes] == [
        (f"{place().name}-0", "10.9.0.0"),
        (f"{place().name}-1", "10.9.0.1"),
    ]
    assert lease(request("PROVISIONING"), slices=(slice_(0), slice_(1, "CREATING"))).state is LeaseState.PENDING


def test_a_slice_that_was_taken_breaks_the_lease_whether_it_is_listed_or_not() -> None:
    listed = lease(request("SUSPENDED"), slices=(slice_(0), slice_(1, "PREEMPTED")))
    gone = lease(request("SUSPENDED"), slices=(slice_(0),))
    for made in (listed, gone):
        assert made.state is LeaseState.BROKEN
        assert [node.state for node in made.nodes] == [LeasedNodeState.RUNNING, LeasedNodeState.PREEMPTED]
        assert [node.is_off for node in made.nodes] == [False, True]


def test_a_slice_that_is_nowhere_is_lost_once_it_must_be_listed() -> None:
    assert lease(request("ACTIVE"), slices=(slice_(0),), at_s=AT_S + 30.0).state is LeaseState.PENDING
    made = lease(request("ACTIVE"), slices=(slice_(0),))
    assert [node.state for node in made.nodes] == [LeasedNodeState.RUNNING, LeasedNodeState.LOST]
    assert {node.state for node in lease(request("ACTIVE")).nodes} == {LeasedNodeState.LOST}


def test_what_must_be_there_and_is_not_listed_is_known_by_name() -> None:
    seen = SeenSlices(place=place(Way.TPU), at_s=AT_S, requests=(request("ACTIVE"),), slices=(slice_(0),))
    assert tpu_words.unlisted(seen) == (f"{place().name}-1",)
    assert tpu_words.unlisted(replace(seen, requests=(request("ACCEPTED"),))) == ()
    assert tpu_words.unlisted(replace(seen, requests=())) == ()


def test_slices_alone_are_a_lease_too() -> None:
    made = lease(slices=(slice_(0), slice_(1)))
    assert (made.state, made.origin) == (LeaseState.ACTIVE, asked().origin)


def test_the_latest_label_is_the_expiry() -> None:
    renewed = slice_(1, **tpu_words.relabelled(slice_(1), until_s=AT_S + 9000.0))
    assert lease(request("ACTIVE"), slices=(slice_(0), renewed)).expires_at_s == AT_S + 9000.0
    assert {**renewed["labels"], record.EXPIRY_LABEL: ""} == {**slice_(1)["labels"], record.EXPIRY_LABEL: ""}


def test_planned_maintenance_is_noticed() -> None:
    planned = slice_(0, upcomingMaintenance={"windowStartTime": STAMP})
    notice = lease(request("ACTIVE"), slices=(planned, slice_(1))).nodes[0].notice
    assert notice is not None
    assert (notice.kind, notice.effective_at_s) == (NoticeKind.MAINTENANCE, AT_S)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (8, "There is no more capacity in the zone", CapacityError),
        (8, "Quota limit 'TPUV5s' has been exceeded. Limit: 4 in zone us-central1-a.", QuotaError),
        (3, "runtime version is unknown", SpecError),
        (7, "denied", SpecError),
    ],
)
def test_one_code_means_no_quota_or_no_room_and_the_message_tells_which(
    code: int, message: str, kind: type[LlmschedError]
) -> None:
    errors = tpu_words.rpc_errors({"code": code, "message": message})
    assert type(states.refusal(errors, what="w", region="r", is_final=True)) is kind


def test_a_request_that_failed_says_why() -> None:
    error = {"code": 8, "message": "no more capacity"}
    made = lease(request("FAILED", failedData={"error": error}))
    assert made.state is LeaseState.BROKEN
    assert "no more capacity" in made.reason
    assert tpu_words.rpc_errors(None) == ()


@pytest.mark.parametrize(
    ("shape", "num_chips"), [("v5litepod-16", 16), ("v6e-8", 8), ("v4-32", 16), ("v5p-8", 4), ("v2-8", 4), ("v3-1", 1)]
)
def test_types_are_read_as_google_counts_them(shape: str, num_chips: int) -> None:
    assert tpu_words.is_slice(shape)
    assert tpu_words.num_chips(shape) == num_chips


def test_machine_types_are_no_slices_and_unknown_words_are_loud(caplog: pytest.LogCaptureFixture) -> None:
    assert not any(map(tpu_words.is_slice, ("a3-highgpu-8g", "ct5lp-hightpu-4t", "n2-standard-8")))
    with pytest.raises(InternalError):
        tpu_words.num_chips("a3-highgpu-8g")
    waiting = lease(request("NAPPING"))
    assert (waiting.state, waiting.nodes) == (LeaseState.PENDING, ())
    assert waiting.leftovers
    starting = lease(request("ACTIVE"), slices=(slice_(0, "DOZING"), slice_(1)))
    assert [node.state for node in starting.nodes] == [LeasedNodeState.STARTING, LeasedNodeState.RUNNING]
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("'NAPPING'" in each for each in said)
    assert any("'DOZING'" in each for each in said)
