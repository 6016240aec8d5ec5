"""The contract finds the faults that it is there to find."""

from __future__ import annotations

import pytest

from airflow_llmsched.testing.fake_switches import FakeSwitches
from airflow_llmsched.testing.switch_contract import RequestOf, SwitchContract


class Forgetful(FakeSwitches):
    def release(self, gang) -> None:
        pass


class Boundless(FakeSwitches):
    def __init__(self, domains) -> None:
        super().__init__(domains, trees_per_domain=10**6)


@pytest.mark.parametrize(
    ("controller", "test"),
    [
        (Forgetful([("b0",)], trees_per_domain=2), "test_room_that_is_given_back_is_there_again"),
        (Boundless([("b0",)]), "test_what_does_not_fit_is_refused_whole"),
    ],
)
def test_a_broken_controller_fails(controller, test) -> None:
    with pytest.raises(BaseException, match=r"DID NOT RAISE|room for"):
        getattr(SwitchContract(), test)(controller, RequestOf(("b0",)))
