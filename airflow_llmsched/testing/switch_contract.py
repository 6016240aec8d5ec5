"""What every switch controller must prove. Subclass ``SwitchContract``, override its fixtures, and run pytest."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.switches import SwitchRequest
from airflow_llmsched.errors import CapacityError, SpecError
from airflow_llmsched.ports import SwitchController


class SwitchContract:
    """Tests of one controller. It must know the domain of ``domain``, with room for ``num_trees`` trees."""

    num_trees = 2

    @pytest.fixture
    def controller(self) -> SwitchController:
        raise NotImplementedError

    @pytest.fixture
    def domain(self) -> tuple[str, ...]:
        raise NotImplementedError

    @pytest.fixture
    def request_of(self, domain: tuple[str, ...]) -> RequestOf:
        return RequestOf(domain)

    def test_what_is_reserved_is_held_until_it_is_released(
        self, controller: SwitchController, request_of: RequestOf
    ) -> None:
        wanted = request_of(1)
        controller.reserve(wanted)
        assert controller.held() == {wanted.gang: wanted}
        controller.release(wanted.gang)
        assert controller.held() == {}

    def test_asking_again_and_giving_back_again_change_nothing(
        self, controller: SwitchController, request_of: RequestOf
    ) -> None:
        for _ in range(2):
            controller.reserve(request_of(self.num_trees))
        assert len(controller.held()) == 1
        for _ in range(2):
            controller.release(request_of(1).gang)
        assert controller.held() == {}

    def test_what_does_not_fit_is_refused_whole(self, controller: SwitchController, request_of: RequestOf) -> None:
        controller.reserve(request_of(self.num_trees - 1, run="first"))
        with pytest.raises(CapacityError):
            controller.reserve(request_of(2, run="second"))
        assert len(controller.held()) == 1
        controller.reserve(request_of(1, run="second"))

    def test_room_that_is_given_back_is_there_again(self, controller: SwitchController, request_of: RequestOf) -> None:
        first, second = request_of(self.num_trees, run="first"), request_of(self.num_trees, run="second")
        controller.reserve(first)
        controller.release(first.gang)
        controller.reserve(second)
        assert set(controller.held()) == {second.gang}

    def test_a_gang_that_holds_something_else_is_told_to_release_it(
        self, controller: SwitchController, request_of: RequestOf
    ) -> None:
        controller.reserve(request_of(1))
        with pytest.raises(SpecError):
            controller.reserve(request_of(2))

    def test_a_class_of_traffic_takes_no_room(self, controller: SwitchController, request_of: RequestOf) -> None:
        controller.reserve(request_of(self.num_trees, run="first"))
        controller.reserve(replace(request_of(1, run="second"), num_trees=0, traffic_class=106))
        assert len(controller.held()) == 2

    def test_an_unknown_domain_is_an_error_that_names_it(
        self, controller: SwitchController, request_of: RequestOf
    ) -> None:
        with pytest.raises(SpecError, match="nowhere"):
            controller.reserve(replace(request_of(1), domains=(("nowhere",),)))


class RequestOf:
    """Makes requests of runs by name."""

    def __init__(self, domain: tuple[str, ...]) -> None:
        self._domain = domain

    def __call__(self, num_trees: int, *, run: str = "run") -> SwitchRequest:
        """Return a request for so many trees."""
        gang = AttemptKey(run=RunKey(f"ls-contract-{run}"), generation=1, attempt=1)
        return SwitchRequest(gang=gang, domains=(self._domain,), num_trees=num_trees)
