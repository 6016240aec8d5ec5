from __future__ import annotations

import pytest

from airflow_llmsched.errors import CapacityError
from airflow_llmsched.testing.fake_switches import FakeSwitches
from airflow_llmsched.testing.switch_contract import RequestOf, SwitchContract

BLOCKS = [("b0",), ("b1",), ("b0", "r0"), ("b0", "r1")]


class TestFakeSwitches(SwitchContract):
    @pytest.fixture
    def controller(self) -> FakeSwitches:
        return FakeSwitches(BLOCKS, trees_per_domain=self.num_trees)

    @pytest.fixture
    def domain(self) -> tuple[str, ...]:
        return ("b0", "r0")


def test_trees_of_racks_take_room_in_the_switches_around_them() -> None:
    switches = FakeSwitches(BLOCKS, trees_per_domain=2)
    switches.reserve(RequestOf(("b0", "r0"))(2, run="first"))
    with pytest.raises(CapacityError, match="all have room for 0 of 1 trees"):
        switches.reserve(RequestOf(("b0", "r1"))(1, run="second"))
    with pytest.raises(CapacityError, match="all have room"):
        switches.reserve(RequestOf(("b1",))(1, run="third"))
