from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.control.rented_engine import RentedEngine
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.sim.engine import SimEngine
from tests.support.cloud_house import CloudHouse, JoiningEngine, quick_pool, spot_pool
from tests.support.lease_house import quote_of
from tests.support.sim_house import RUN
from tests.support.switched_engine import SwitchedEngine


class Rented:
    """A run that rents from a simulated cloud, and what its engine was opened with."""

    def __init__(self, house: CloudHouse, slots: Mapping[str, int]) -> None:
        self.house = house
        self.opened: list[Sequence[Mapping[str, Any]]] = []
        self.engine = RentedEngine(
            lambda: [house.book()],
            open_hosts=self._open,
            open_cloud=house.cloud,
            clock=house.clock,
            slots=slots,
            port=2222,
        )

    def rent(self, offer: Offer, purpose: str = "run_gang-1") -> None:
        wanted = self.house.wanted()
        quotes = (quote_of(offer),)
        self.house.renter().rent(type(wanted)(**{**_fields(wanted), "purpose": purpose, "quotes": quotes}))

    def _open(self, hosts: Sequence[Mapping[str, Any]]) -> SimEngine:
        self.opened.append(hosts)
        return self.house.engine


def _fields(wanted: Any) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Rented]:
    def made(slots: Mapping[str, int] | None = None) -> Rented:
        return Rented(CloudHouse(tmp_path, quick_pool(), spot_pool()), {"sim.8x": 2} if slots is None else slots)

    return made


def test_the_hosts_are_the_machines_of_all_open_leases_as_the_cloud_tells_their_addresses(
    make: Callable[..., Rented],
) -> None:
    rented = make()
    ordered_at_s = rented.house.clock.now_s()
    rented.rent(rented.house.pools[0].offer)
    rented.rent(rented.house.pools[1].offer, "run_gang-more-1")
    rented.house.clock.sleep(11.0)
    rented.engine.topology()
    assert [(each["name"], each["address"]) for each in rented.opened[-1]] == [
        (f"sim-{number:06d}", f"sim-node-{number}") for number in range(4)
    ]
    path = ["sim-east", "sim-east-a", "sim-000000"]
    joins_until_s = ordered_at_s + rented.house.pools[0].offer.start_up_s
    told = {"port": 2222, "slots": 2, "path": path, "shape": "sim.8x", "joins_until_s": joins_until_s}
    assert rented.opened[-1][0] == {"name": "sim-000000", "address": "sim-node-0", **told}


def test_a_run_without_leases_has_an_engine_without_hosts(make: Callable[..., Rented]) -> None:
    rented = make()
    assert rented.engine.find(rented.house.book().run) == []
    assert rented.opened[-1] == []


def test_machines_that_come_up_are_looked_at_again_and_those_that_run_are_not(make: Callable[..., Rented]) -> None:
    rented = make()
    rented.rent(rented.house.pools[0].offer)
    for _ in range(2):
        rented.engine.topology()
    assert len(rented.opened) == 3  # the first time without any
    rented.house.clock.sleep(11.0)
    rented.engine.topology()
    rented.house.sim_cloud.faults.is_dark = True
    rented.engine.poll([])
    assert len(rented.opened) == 4


def test_machines_that_come_late_have_as_long_to_come_up_as_those_that_came_at_once(
    make: Callable[..., Rented],
) -> None:
    rented = make()
    rented.rent(rented.house.pools[0].offer)
    rented.house.clock.sleep(7.0)
    rented.engine.topology()
    awaited_at_s = rented.house.clock.now_s()
    rented.house.clock.sleep(7.0)
    rented.engine.topology()
    start_up_s = rented.house.pools[0].offer.start_up_s
    assert {each["joins_until_s"] for each in rented.opened[-1]} == {awaited_at_s + start_up_s}


def test_another_lease_is_seen_by_an_engine_that_was_opened_long_ago(make: Callable[..., Rented]) -> None:
    rented = make()
    rented.rent(rented.house.pools[0].offer)
    rented.house.clock.sleep(11.0)
    rented.engine.topology()
    rented.rent(rented.house.pools[1].offer, "run_gang-2")
    rented.house.renter().give_up("run_gang-1", reason="moved")
    rented.engine.topology()
    assert [each["name"] for each in rented.opened[-1]] == ["sim-000002", "sim-000003"]


def test_a_cloud_that_cannot_be_asked_is_no_engine_without_hosts(make: Callable[..., Rented]) -> None:
    rented = make()
    rented.rent(rented.house.pools[0].offer)
    rented.house.sim_cloud.faults.is_dark = True
    with pytest.raises(CouldNotLookError):
        rented.engine.poll([])


def test_whether_lost_machines_are_off_is_asked_anew_and_a_silent_cloud_proves_nothing(
    make: Callable[..., Rented],
) -> None:
    rented = make()
    rented.rent(rented.house.pools[0].offer)
    rented.house.clock.sleep(11.0)
    rented.engine.topology()
    handle = GangHandle(engine="sim", key=AttemptKey(run=RUN, generation=1, attempt=1), native_id="x")
    rented.house.sim_cloud.preempt(NodeId("sim-000001"))
    rented.house.clock.sleep(1.0)
    rented.house.sim_cloud.faults.is_dark = True
    assert rented.engine.fence(handle) == frozenset()
    rented.engine.poll([])  # what was known before is known still
    rented.house.sim_cloud.faults.is_dark = False
    assert [each.get("off", False) for each in rented.opened[-1]] == [False, False]
    rented.engine.fence(handle)
    assert [each.get("off", False) for each in rented.opened[-1]] == [False, True]


def test_a_shape_of_unknown_size_is_named(make: Callable[..., Rented]) -> None:
    rented = make({})
    rented.rent(rented.house.pools[0].offer)
    with pytest.raises(SpecError, match=r"hosts\.slots\.sim\.8x: must say how many accelerators"):
        rented.engine.topology()


def test_it_is_the_engine_of_hosts_in_all_else(make: Callable[..., Rented]) -> None:
    rented = make()
    assert rented.engine.name == rented.house.engine.name
    assert rented.engine.features == rented.house.engine.features | {EngineFeature.NODES_ARE_RENTED}
    assert rented.engine.late_duplicate_guard is rented.house.engine.late_duplicate_guard
    assert rented.engine.find_all() == []


class JoiningSwitches(SwitchedEngine, JoiningEngine):
    """Has the machines that its cloud has running, and knows which are listed as off."""


class RentedSwitches(RentedEngine):
    """One whose true state can be looked at."""

    def live(self, run: RunKey) -> tuple[GangHandle, ...]:
        assert isinstance(self._engine, SimEngine)
        return self._engine.live(run)


class LosingHouse(CloudHouse):
    """A run on rented machines that reads its hosts from the lease book; what its cloud takes is just silent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, quick_pool(), spot_pool())
        self.context = replace(self.context, lease_s=600.0)
        self.hosts = JoiningSwitches(
            self.world, TopologyTree(levels=("rack",), nodes=()), hub=self.hub, checkpoints=self.checkpoints
        )
        self.hosts.cloud = self.sim_cloud
        self.engine = RentedSwitches(  # type: ignore[assignment]
            lambda: [self.book()],
            open_hosts=self._open,
            open_cloud=self.cloud,
            clock=self.clock,
            slots={"sim.8x": 2},
        )

    def _open(self, hosts: Sequence[Mapping[str, Any]]) -> SwitchedEngine:
        self.hosts.switched = frozenset(NodeId(each["name"]) for each in hosts if each.get("off"))
        return self.hosts

    def take_one(self, *, is_dark: bool = False) -> None:
        """Take a spot machine and with it whoever could say what became of its ranks."""
        (lease, *_) = [each for each in self.sim_cloud.find_all() if each.pool.capacity_type is CapacityType.SPOT]
        self.hosts.partition(lease.nodes[0].id)
        self.sim_cloud.preempt(lease.nodes[0].id)
        self._pools("sim-east-a")[0].num_free = 0
        self.sim_cloud.faults.is_dark = is_dark

    def keep(self) -> None:
        with contextlib.suppress(CouldNotLookError):
            super().keep()

    def lit_again(self) -> None:
        self.sim_cloud.faults.is_dark = False

    def waits(self) -> list[ev.FenceAwaited]:
        """Return each time that the run was told to wait for agents out of sight."""
        return [event for event in self.journal.read() if isinstance(event, ev.FenceAwaited)]


def test_a_run_that_lost_a_rented_machine_goes_on_at_once_by_its_clouds_word(tmp_path: Path) -> None:
    house = LosingHouse(tmp_path)
    outcome = house.run(before_look=house.at((500.0, house.take_one)))
    assert isinstance(outcome, Succeeded)
    assert house.where()[0] == "2 spot sim.8x sim-east-a"
    assert len(house.where()) == 2
    assert house.waits() == [], "nor for the ten minutes of its agents' lease"
    first = house.attempts()[0]
    assert first.status is not None
    assert len(first.status.unconfirmed_nodes) == 1
    assert house.hosts.overlaps == []


def test_a_cloud_that_says_nothing_is_no_proof_until_it_says_it(tmp_path: Path) -> None:
    house = LosingHouse(tmp_path)
    events = (500.0, lambda: house.take_one(is_dark=True)), (700.0, house.lit_again)
    outcome = house.run(before_look=house.at(*events))
    assert isinstance(outcome, Succeeded)
    waits = house.waits()
    assert 150.0 < waits[-1].at_s - waits[0].at_s < 230.0, "asked all the while, and until it said so"
    assert waits[-1].until_s > waits[-1].at_s + 200.0
    assert house.hosts.overlaps == []
