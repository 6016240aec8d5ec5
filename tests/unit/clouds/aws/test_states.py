from __future__ import annotations

import logging

import pytest

from airflow_llmsched.clouds.aws import states
from airflow_llmsched.clouds.aws.states import (
    REACTIONS,
    Reaction,
    RequestState,
    is_off,
    node_state,
    reaction,
    refusal,
    request_state,
)
from airflow_llmsched.domain.lease import LeasedNodeState, NoticeKind

CODES = {
    Reaction.WAIT: [
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientFreeAddressesInSubnet",
        "UnfulfillableCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
    ],
    Reaction.QUOTA: [
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "MaxSpotFleetRequestCountExceeded",
        "MaxIOPSLimitExceeded",
        "VolumeLimitExceeded",
        "NetworkInterfaceLimitExceeded",
        "PlacementGroupLimitExceeded",
        "ResourceCountExceeded",
        "ResourceLimitExceeded",
        "PendingVerification",
    ],
    Reaction.FIX: [
        "InvalidParameterValue",
        "InvalidParameterCombination",
        "InvalidAMIID.NotFound",
        "InvalidSubnetID.NotFound",
        "InvalidCapacityReservationId.NotFound",
        "MissingParameter",
        "ParamValidationError",
        "ValidationError",
        "MalformedQueryString",
        "Unsupported",
        "UnsupportedOperation",
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "OptInRequired",
        "OperationNotPermitted",
        "Blocked",
        "TagLimitExceeded",
    ],
    Reaction.AGAIN: [
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "EC2ThrottledException",
        "TooManyRequestsException",
        "SlowDown",
        "ConcurrentTagAccess",
        "RequestExpired",
        "ExpiredToken",
        "ExpiredTokenException",
    ],
    Reaction.UNKNOWN: ["InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "RequestTimeout"],
    Reaction.CLASH: ["IdempotentParameterMismatch"],
    Reaction.TAKEN: ["InvalidLaunchTemplateName.AlreadyExistsException", "InvalidPlacementGroup.Duplicate"],
    Reaction.GONE: [
        "InvalidInstanceID.NotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidPlacementGroup.Unknown",
        "InvalidSpotInstanceRequestID.NotFound",
        "InvalidVolume.NotFound",
        "InvalidNetworkInterfaceID.NotFound",
    ],
    Reaction.IN_USE: [
        "InvalidPlacementGroup.InUse",
        "VolumeInUse",
        "InvalidNetworkInterface.InUse",
        "IncorrectState",
        "IncorrectInstanceState",
        "DependencyViolation",
    ],
}


@pytest.mark.parametrize(("code", "meant"), [(code, meant) for meant, codes in CODES.items() for code in codes])
def test_every_error_code_asks_for_its_reaction(code: str, meant: Reaction) -> None:
    assert reaction(code) is meant


def test_every_row_of_the_table_is_the_first_for_some_code_that_is_tested() -> None:
    codes = [code for each in CODES.values() for code in each]
    first = {next(pattern for pattern, _ in REACTIONS if states.fnmatchcase(code, pattern)) for code in codes}
    assert {pattern for pattern, _ in REACTIONS} == first


def test_a_code_that_is_new_to_us_asks_for_nothing() -> None:
    assert reaction("MoonPhaseUnfavourable") is None


@pytest.mark.parametrize(
    ("codes", "meant"),
    [
        ([], Reaction.WAIT),
        (["InsufficientInstanceCapacity", "VcpuLimitExceeded"], Reaction.QUOTA),
        (["InsufficientInstanceCapacity", "InvalidParameterValue"], Reaction.FIX),
        (["InvalidParameterValue", "MaxSpotInstanceCountExceeded"], Reaction.QUOTA),
        (["UnfulfillableCapacity", "MoonPhaseUnfavourable"], Reaction.WAIT),
        (["MoonPhaseUnfavourable"], None),
        (["InternalError"], Reaction.UNKNOWN),
    ],
)
def test_of_a_fleet_s_errors_the_one_that_waiting_does_not_mend_counts(
    codes: list[str], meant: Reaction | None
) -> None:
    assert refusal(codes)[0] is meant


def test_a_refusal_names_the_code_that_it_goes_by() -> None:
    assert refusal(["UnfulfillableCapacity", "VcpuLimitExceeded"]) == (Reaction.QUOTA, "VcpuLimitExceeded")


@pytest.mark.parametrize(
    ("state", "reason", "status", "expected"),
    [
        ("pending", "pending", "", LeasedNodeState.STARTING),
        ("running", "", "fulfilled", LeasedNodeState.RUNNING),
        ("terminated", "Server.SpotInstanceTermination", "", LeasedNodeState.PREEMPTED),
        ("stopped", "Server.SpotInstanceShutdown", "", LeasedNodeState.PREEMPTED),
        ("terminated", "", "instance-terminated-no-capacity", LeasedNodeState.PREEMPTED),
        ("shutting-down", "", "instance-terminated-by-price", LeasedNodeState.PREEMPTED),
        ("terminated", "Client.UserInitiatedShutdown", "instance-terminated-by-user", LeasedNodeState.LOST),
        ("terminated", "Client.InstanceInitiatedShutdown", "", LeasedNodeState.LOST),
        ("terminated", "Server.InternalError", "", LeasedNodeState.LOST),
        ("stopping", "Server.ScheduledStop", "", LeasedNodeState.LOST),
    ],
)
def test_a_node_that_was_taken_is_told_from_one_that_was_lost(
    state: str, reason: str, status: str, expected: LeasedNodeState
) -> None:
    assert node_state(state, instance="i-1", reason=reason, request_status=status) is expected


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("terminated", "Server.SpotInstanceTermination", True),
        ("stopped", "Server.SpotInstanceShutdown", True),
        ("shutting-down", "Server.SpotInstanceTermination", False),
        ("stopping", "Server.ScheduledStop", False),
        ("stopped", "Client.UserInitiatedHibernate", False),
        ("running", "", False),
    ],
)
def test_an_instance_is_off_once_nothing_of_it_can_go_on(state: str, reason: str, expected: bool) -> None:
    assert is_off(state, reason=reason) is expected


def test_what_is_gone_after_its_capacity_block_was_taken_with_it() -> None:
    assert node_state("terminated", instance="i-1", reason="", is_block_over=True) is LeasedNodeState.PREEMPTED
    assert node_state("running", instance="i-1", reason="", is_block_over=True) is LeasedNodeState.RUNNING


def test_a_state_that_ec2_did_not_have_is_loud_and_may_cost_money(caplog: pytest.LogCaptureFixture) -> None:
    assert node_state("dozing", instance="i-7", reason="Server.ScheduledStop") is LeasedNodeState.STARTING
    assert request_state("napping", request="sir-7") is RequestState.WAITING
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ["AWS instance i-7 is called 'dozing'" in said[0], "AWS spot request sir-7 is" in said[1]] == [True, True]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("open", RequestState.WAITING),
        ("active", RequestState.HOLDING),
        ("disabled", RequestState.HOLDING),
        ("closed", RequestState.OVER),
        ("cancelled", RequestState.OVER),
        ("failed", RequestState.OVER),
    ],
)
def test_a_request_that_is_over_brings_nothing(state: str, expected: RequestState) -> None:
    assert request_state(state, request="sir-1") is expected


def test_an_end_for_a_new_reason_is_a_loss_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert node_state("terminated", instance="i-1", reason="Server.Eclipse") is LeasedNodeState.LOST
    assert "Server.Eclipse" in caplog.text


def test_only_what_comes_back_to_its_gang_is_maintenance() -> None:
    assert {code for code, kind in states.EVENTS.items() if kind is NoticeKind.INTERRUPTION} == {
        "instance-retirement",
        "instance-stop",
    }
