from __future__ import annotations

import pytest

from airflow_llmsched.clouds.azure import states
from airflow_llmsched.clouds.azure.states import AzureFault, Reaction, SetPhase
from airflow_llmsched.domain.lease import LeasedNodeState
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


@pytest.mark.parametrize(
    ("provisioning", "power", "capacity_type", "state"),
    [
        ("Creating", [], ON_DEMAND, LeasedNodeState.STARTING),
        ("Creating", ["PowerState/running"], ON_DEMAND, LeasedNodeState.STARTING),
        ("Succeeded", [], ON_DEMAND, LeasedNodeState.STARTING),
        ("Succeeded", ["ProvisioningState/succeeded", "PowerState/running"], ON_DEMAND, LeasedNodeState.RUNNING),
        ("Updating", ["ProvisioningState/updating", "PowerState/running"], SPOT, LeasedNodeState.RUNNING),
        ("Succeeded", ["PowerState/starting"], SPOT, LeasedNodeState.STARTING),
        ("Succeeded", ["PowerState/unknown"], SPOT, LeasedNodeState.STARTING),
        ("Succeeded", ["PowerState/deallocating"], SPOT, LeasedNodeState.PREEMPTED),
        ("Succeeded", ["PowerState/deallocated"], SPOT, LeasedNodeState.PREEMPTED),
        ("Succeeded", ["PowerState/deallocated"], ON_DEMAND, LeasedNodeState.LOST),
        ("Succeeded", ["PowerState/stopped"], SPOT, LeasedNodeState.LOST),
        ("Deleting", ["PowerState/running"], SPOT, LeasedNodeState.PREEMPTED),
        ("Deleting", ["PowerState/running"], ON_DEMAND, LeasedNodeState.LOST),
        ("Failed", ["PowerState/running"], SPOT, LeasedNodeState.LOST),
    ],
)
def test_a_machine_that_was_taken_is_told_from_one_that_was_lost(provisioning, power, capacity_type, state) -> None:
    assert states.node_state(provisioning, power, capacity_type, name="m_0") is state


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("Creating", SetPhase.COMING),
        ("Updating", SetPhase.READY),
        ("Succeeded", SetPhase.READY),
        ("Failed", SetPhase.FAILED),
        ("Deleting", SetPhase.ENDING),
    ],
)
def test_a_scale_set_stands_where_its_word_says(word, phase) -> None:
    assert states.set_phase(word, name="m") is phase


def operation_phase(word: str) -> SetPhase | None:
    return states.operation_phase(word, url="/operations/7")


def test_an_operation_that_deletes_is_under_way_until_it_says_otherwise() -> None:
    assert {operation_phase("Deleting"), operation_phase("InProgress")} == {SetPhase.COMING}
    assert operation_phase("Succeeded") is SetPhase.READY
    assert operation_phase("Cancelled") is SetPhase.FAILED


@pytest.mark.parametrize(
    "look",
    [
        lambda: states.react([AzureFault(code="OutOfCheese", message="redo", status=409)]),
        lambda: states.react([]),
    ],
)
def test_an_unknown_error_is_loud(look) -> None:
    with pytest.raises(InternalError, match="report it"):
        look()


@pytest.mark.parametrize(
    ("look", "meant", "thing"),
    [
        (lambda: states.set_phase("Resting", name="m"), SetPhase.COMING, "Azure scale set m is"),
        (lambda: operation_phase("Resting"), None, "Azure operation /operations/7 is"),
        (
            lambda: states.node_state("Resting", ["PowerState/running"], SPOT, name="m_0"),
            LeasedNodeState.RUNNING,
            "Azure machine m_0 is",
        ),
        (lambda: states.node_state("Resting", [], SPOT, name="m_0"), LeasedNodeState.STARTING, "Azure machine m_0 is"),
        (
            lambda: states.node_state("Succeeded", ["PowerState/Resting"], SPOT, name="m_0"),
            LeasedNodeState.STARTING,
            "Azure machine m_0's power is",
        ),
    ],
)
def test_an_unknown_word_is_loud_and_may_cost_money(look, meant, thing, caplog) -> None:
    assert look() is meant
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said.startswith(f"{thing} called 'Resting'")


@pytest.mark.parametrize(("code", "word", "reaction"), states.ERRORS)
def test_every_row_of_the_table_is_reached(code: str, word: str, reaction: Reaction) -> None:
    fault = AzureFault(code=code.upper(), message=f"Because: {word.title()}.", status=409)
    assert states.react([fault]) == (reaction, fault)


@pytest.mark.parametrize(
    ("code", "message", "reaction"),
    [
        (
            "OperationNotAllowed",
            "Operation could not be completed as it results in exceeding approved standardNDSH100v5Family Cores quota.",
            Reaction.QUOTA,
        ),
        ("OperationNotAllowed", "The scale set is marked for deletion.", Reaction.BUSY),
        ("OperationNotAllowed", "Accelerated networking is not possible on this size.", Reaction.SPEC),
        ("OverConstrainedAllocationRequest", "Allocation failed.", Reaction.CAPACITY),
    ],
)
def test_one_code_that_means_several_things_is_told_apart_by_its_message(code, message, reaction) -> None:
    assert states.react([AzureFault(code=code, message=message, status=409)])[0] is reaction


@pytest.mark.parametrize("outside", ["DeploymentFailed", "Conflict", "BadRequest"])
def test_the_cause_inside_of_an_error_counts_before_its_outside(outside: str) -> None:
    answer = {
        "code": outside,
        "message": "At least one operation failed.",
        "details": [{"code": "VMScaleSetFailed", "details": [{"code": "AllocationFailed", "message": "none left"}]}],
    }
    reaction, fault = states.react(list(states.faults(answer, status=409)))
    assert (reaction, fault.code, fault.message) == (Reaction.CAPACITY, "AllocationFailed", "none left")


def test_a_failed_resource_says_why_in_its_instance_view() -> None:
    view = [
        {"code": "ProvisioningState/failed/ZonalAllocationFailed", "message": "no room in zone 2"},
        {"code": "PowerState/stopped"},
        {"code": "ProvisioningState/succeeded"},
    ]
    assert [fault.code for fault in states.view_faults(view)] == ["ZonalAllocationFailed"]


@pytest.mark.parametrize(
    ("status", "reaction"),
    [(404, Reaction.ABSENT), (409, Reaction.BUSY), (429, Reaction.THROTTLED), (502, Reaction.TRANSIENT)],
)
def test_an_answer_without_a_code_is_judged_by_its_status(status: int, reaction: Reaction) -> None:
    assert states.react([AzureFault(code="", message="", status=status)])[0] is reaction


def test_an_unknown_code_of_a_server_in_trouble_is_its_trouble() -> None:
    assert states.react([AzureFault(code="OutOfCheese", message="", status=503)])[0] is Reaction.TRANSIENT
