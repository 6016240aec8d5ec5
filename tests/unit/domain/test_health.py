from __future__ import annotations

import pytest

from airflow_llmsched.domain.health import FAILURE_CLASS, FailureClass, Fault, FaultKind


def test_every_kind_of_fault_is_charged_to_a_budget():
    assert set(FAILURE_CLASS) == set(FaultKind)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FaultKind.RANK_FAILED, FailureClass.CODE),
        (FaultKind.RANK_EXITED_EARLY, FailureClass.CODE),
        (FaultKind.NODE_LOST, FailureClass.INFRASTRUCTURE),
        (FaultKind.DISK_FULL, FailureClass.INFRASTRUCTURE),
        (FaultKind.PREEMPTED, FailureClass.PREEMPTION),
    ],
)
def test_a_fault_knows_whose_it_is(kind, expected):
    assert Fault(kind=kind, summary="it happened", at_s=1.0).failure_class is expected


def test_only_a_preemption_spends_no_budget():
    assert [kind for kind, owner in FAILURE_CLASS.items() if owner is FailureClass.PREEMPTION] == [FaultKind.PREEMPTED]
