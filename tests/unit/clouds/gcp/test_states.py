from __future__ import annotations

import pytest

from airflow_llmsched.clouds.gcp import states
from airflow_llmsched.clouds.gcp.states import NativeError, Reaction, RequestState
from airflow_llmsched.domain.lease import LeasedNodeState
from airflow_llmsched.errors import CapacityError, InternalError, LlmschedError, QuotaError, SpecError, TransientError
from tests.support.google_discovery import discovery

SCHEMAS = discovery("compute.v1").schemas


def error_of(code: str, *, is_final: bool = True) -> LlmschedError:
    error = NativeError(code=code, message="so it is")
    return states.refusal([error], what="2 nodes", region="us-central1", is_final=is_final)


def test_every_status_that_google_knows_of_a_machine_has_a_meaning() -> None:
    assert set(states.NODE_STATE) == set(SCHEMAS["Instance"]["properties"]["status"]["enum"])


def test_every_state_that_google_knows_of_a_resize_request_has_a_meaning() -> None:
    known = set(SCHEMAS["InstanceGroupManagerResizeRequest"]["properties"]["state"]["enum"])
    assert set(states.RESIZE_STATE) == known - {"STATE_UNSPECIFIED"}


def test_a_machine_that_ended_is_lost_unless_google_took_it() -> None:
    ended = {"name": "n0", "status": "TERMINATED"}
    assert states.node_state(ended, preempted=frozenset()) is LeasedNodeState.LOST
    assert states.node_state(ended, preempted=frozenset({"n0"})) is LeasedNodeState.PREEMPTED
    assert states.node_state({**ended, "status": "RUNNING"}, preempted=frozenset({"n0"})) is LeasedNodeState.RUNNING


def test_words_that_nobody_wrote_down_are_loud_and_may_cost_money(caplog: pytest.LogCaptureFixture) -> None:
    machine = {"name": "n0", "status": "NAPPING"}
    assert states.node_state(machine, preempted=frozenset({"n0"})) is LeasedNodeState.STARTING
    assert states.request_state({"name": "r", "state": "DOZING"}) is RequestState.WAITING
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ["GCP machine n0 is called 'NAPPING'" in said[0], "GCP resize request r is" in said[1]] == [True, True]


def test_a_reason_that_nobody_wrote_down_is_an_error_to_report() -> None:
    error = error_of("SHRUGGED")
    assert type(error) is InternalError
    assert "SHRUGGED" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("VM_MIN_COUNT_NOT_REACHED", CapacityError),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", CapacityError),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", CapacityError),
        ("STOCKOUT", CapacityError),
        ("UNSUPPORTED_OPERATION", CapacityError),
        ("INTERNAL_ERROR", CapacityError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("quotaExceeded", QuotaError),
        ("RESOURCE_NOT_FOUND", SpecError),
        ("INVALID_FIELD_VALUE", SpecError),
        ("PERMISSIONS_ERROR", SpecError),
        ("invalid", SpecError),
        ("forbidden", SpecError),
    ],
)
def test_an_error_becomes_what_its_reader_does_next(code: str, kind: type[LlmschedError]) -> None:
    error = error_of(code)
    assert type(error) is kind
    assert code in str(error)
    assert "2 nodes" in str(error)


@pytest.mark.parametrize("code", [code for code, each in states.REACTION.items() if each is Reaction.RETRY])
def test_what_may_pass_is_tried_again_only_if_it_was_never_begun(code: str) -> None:
    assert type(error_of(code, is_final=False)) is TransientError
    assert type(error_of(code, is_final=True)) is CapacityError


def test_of_several_errors_the_strongest_counts() -> None:
    few, short, quota = (
        NativeError(code=code, message="")
        for code in ("VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED", "QUOTA_EXCEEDED")
    )
    assert states.reaction([few, short]) is Reaction.CAPACITY
    assert states.reaction([few, short, quota]) is Reaction.QUOTA
    assert states.reaction([]) is Reaction.SUMMARY


def test_a_quota_error_names_the_region() -> None:
    error = error_of("QUOTA_EXCEEDED")
    assert isinstance(error, QuotaError)
    assert error.region == "us-central1"


def test_a_resize_request_is_waited_for_until_it_is_met_or_over() -> None:
    assert states.request_state({"state": "ACCEPTED"}) is RequestState.WAITING
    assert states.request_state({"state": "SUCCEEDED"}) is RequestState.MET
    assert states.request_state({"state": "CANCELLED"}) is RequestState.ENDED


def test_a_bulk_insert_says_how_many_were_planned_and_made_or_does_not() -> None:
    told = {
        "instancesBulkInsertOperationMetadata": {
            "perLocationStatus": {"zones/us-central1-a": {"targetVmCount": 4, "createdVmCount": 3}}
        }
    }
    assert (states.num_planned(told), states.num_created(told)) == (4, 3)
    assert (states.num_planned({}), states.num_created({})) == (0, None)
