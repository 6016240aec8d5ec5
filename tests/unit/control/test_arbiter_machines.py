from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_llmsched.control import arbiter_machines
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_machines import join_ground, known_grounds, lacking, scope_of
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.crashing import Gun, Shot, WorkerDied, listening
from tests.support.memory_store import MemoryStore

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")


class House:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = VirtualClock()

    def opened(self, *hosts: str, name: str = "") -> str:
        """Open a list of hosts, ``name`` or ``name=machine``, and return its ground."""
        inventory = machines(*hosts)
        return join_ground(inventory, name or f"hosts-{scope_of(inventory)}", store=self.store, clock=self.clock)

    def ground(self, name: str) -> Ground:
        return Ground(self.store, name, clock=self.clock)

    def claim(self, name: str, node: str) -> None:
        gang = QueuedGang(key=RUN, team="red", priority_class="normal")
        self.ground(name).claim(Claim(gang=gang, num_records=1, since_s=0.0, held={NodeId(node): (0,)}))


@pytest.fixture
def house() -> House:
    return House()


def machines(*hosts: str) -> Mapping[NodeId, str]:
    parted = [each.partition("=") for each in hosts]
    return {NodeId(name): machine or f"{name}:22" for name, _, machine in parted}


def test_lists_that_have_no_machine_in_common_are_grounds_by_themselves_though_names_are_alike(house: House) -> None:
    one, other = house.opened("gpu1=10.0.0.1:22"), house.opened("gpu1=10.1.0.1:22")
    assert one != other
    assert house.opened("gpu1=10.0.0.1:22") == one


def test_lists_that_share_machines_are_one_ground_also_over_a_third(house: House) -> None:
    one = house.opened("h1", "h2")
    house.claim(one, "h1")
    assert house.opened("h2", "h3") == one
    assert house.opened("h3", "h4") == one
    assert house.opened("h1", "h2") == one


def test_a_list_that_bridges_two_grounds_is_refused_while_runs_hold_nodes_of_them_and_joins_them_then(
    house: House,
) -> None:
    one, other = house.opened("h1", "h2"), house.opened("h3", "h4")
    house.claim(one, "h1")
    with pytest.raises(SpecError, match=f"{one}, which other lists of hosts share out, and 1 runs"):
        house.opened("h2", "h3")
    house.ground(one).free(RUN, num_records=1)
    both = house.opened("h2", "h3")
    assert both not in (one, other)
    assert house.opened("h1", "h2") == house.opened("h3", "h4") == both
    for late in (one, other):
        with pytest.raises(CouldNotLookError, match="shared out elsewhere"):
            house.claim(late, "h1")


@pytest.mark.parametrize("renamed", [("node1=h1:22", "h2"), ("h2=h1:22",)])
def test_a_machine_that_is_called_otherwise_is_the_same_machine(house: House, renamed: tuple[str, ...]) -> None:
    one = house.opened("h1", "h2")
    house.claim(one, "h1")
    with pytest.raises(SpecError, match="under the same names"):
        house.opened(*renamed)
    house.ground(one).free(RUN, num_records=1)
    after = house.opened(*renamed)
    assert after != one
    assert house.opened(*renamed) == after
    back = house.opened("h1", "h2")
    assert back not in (one, after)


def test_a_fleet_takes_its_machines_over_and_keeps_them(house: House) -> None:
    one = house.opened("h1")
    assert house.opened("partner/h1=h1:22", "partner/h2=h2:22", name=FLEET) == FLEET
    assert house.ground(one).state().is_closed
    with pytest.raises(SpecError, match="is partner/h1 of the fleet file: name its cluster as the engine"):
        house.opened("h1")
    assert house.opened("partner/h2=h2:22", name=FLEET) == FLEET
    assert house.opened("h1") not in (FLEET, one)


@pytest.mark.parametrize("point", ["arbiter.join", "arbiter.close", "numbered.append"])
@pytest.mark.parametrize("side", list(Side))
def test_whoever_dies_while_he_joins_machines_is_followed_by_one_who_does(house: House, point: str, side: Side) -> None:
    one, other = house.opened("h1"), house.opened("h2")

    def die() -> None:
        raise WorkerDied

    with listening(Gun(Shot(point, side, 1), die)), pytest.raises(WorkerDied):
        house.opened("h1", "h2")
    both = house.opened("h1", "h2")
    assert both not in (one, other)
    assert house.opened("h1") == house.opened("h2") == both
    house.claim(both, "h1")


def test_whoever_stood_still_while_others_joined_the_same_machines_finds_their_ground(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = arbiter_machines.joined
    came: list[str] = []

    def others_come_first(*arguments: object) -> object:
        found = joined(*arguments)  # type: ignore[arg-type]
        if not came:
            came.append("")
            came.append(house.opened("h2", "h3"))
        return found

    monkeypatch.setattr(arbiter_machines, "joined", others_come_first)
    assert house.opened("h1", "h2") == came[1]


def test_whoever_only_gives_back_finds_the_grounds_and_joins_nothing(house: House) -> None:
    def known(*hosts: str, name: str = "new") -> tuple[str, ...]:
        return known_grounds(machines(*hosts), name, store=house.store, clock=house.clock)

    assert known("h1") == ("new",)
    one = house.opened("h1", "h2")
    house.claim(one, "h1")
    assert known("h2", "h9") == (one,)
    assert known("partner/h1=h1:22", name=FLEET) == (FLEET,)
    other = house.opened("h9")
    assert known("h2", "h9") == tuple(sorted((one, other)))


def test_a_ground_lacks_what_is_shared_out_elsewhere_or_called_otherwise(house: House) -> None:
    one, other = house.opened("h1", "h2"), house.opened("h3")

    def lacks(ground: str) -> set[str]:
        inventory = machines("h1", "node2=h2:22", "h3", "h4")
        return set(lacking(ground, inventory, store=house.store, clock=house.clock))

    assert lacks(one) == {"node2", "h3", "h4"}
    assert lacks(other) == {"h1", "node2", "h4"}
