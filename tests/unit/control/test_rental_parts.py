"""Runs on a mix of two leases: what stays, on demand, and what is added as spot capacity while it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.capacity import Holds, Standing, Waits
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.rental_parts import RentalRack, Role
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import LeaseId
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CouldNotLookError
from tests.support.cloud_house import CloudHouse, need_of, quick_pool, spot_pool
from tests.support.crashing import CrashPoints, WorkerDied, listening
from tests.support.lease_house import quote_of
from tests.support.sim_house import RUN

ZONE = "sim-east-a"
BASE, BOTH = f"2 on_demand sim.8x {ZONE}", f"2 on_demand sim.8x {ZONE} + 2 spot sim.8x {ZONE}"
HURRY_S = 1400.0
"""Two nodes would take 2000 s, four 1000 s, and there is spot capacity for two: no way but a mix keeps it cheap."""


@pytest.fixture
def make_house(tmp_path: Path) -> Callable[..., CloudHouse]:
    def make(*, within_s: float = HURRY_S, num_on_demand: int = 8) -> CloudHouse:
        demand, spot = quick_pool(num_free=num_on_demand), spot_pool(num_free=2)
        house = CloudHouse(tmp_path, demand, spot, need=need_of(2, 4))
        deadline_s = house.clock.now_s() + within_s
        house.terms = replace(house.terms, deadline_s=deadline_s, tick_s=200.0)
        house.context = replace(house.context, deadline_s=deadline_s, review_every_s=house.terms.tick_s)
        return house

    return make


def fallen(house: CloudHouse) -> list[ev.AnyEvent]:
    return [event for event in house.journal.read() if isinstance(event, ev.GangEnded) and event.fault]


def test_one_gang_is_trained_on_two_leases_and_both_are_given_back(make_house: Callable[..., CloudHouse]) -> None:
    house = make_house()
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Succeeded)
    assert house.where()[0] == BOTH
    assert not fallen(house)
    house.renter().release()
    assert not house.sim_cloud.billed()
    whole = 4 * 1000.0 / 3600.0 * 40.0
    assert house.sim_cloud.spent_usd() < 0.75 * whole


def test_a_lost_spot_part_shrinks_the_gang_to_what_is_kept_where_nothing_else_is_to_be_had(
    make_house: Callable[..., CloudHouse],
) -> None:
    house = make_house(within_s=1300.0, num_on_demand=2)
    look = house.at((300.0, lambda: house.take(ZONE)))
    house.run(before_look=look)
    assert house.where() == [BOTH, BASE]
    kept, *_ = house.book().rentals()
    assert kept.end is None
    resumed = [each.checkpoint for each in house.journal.read() if isinstance(each, ev.CheckpointChosen)][1]
    assert resumed is not None
    first, second = house.steps()[:2]
    assert second[0] == resumed.step + 1
    assert first[-1] - resumed.step <= house.training.checkpoint_interval_steps


def test_a_lost_spot_part_is_replaced_beside_what_is_kept_when_time_is_short(
    make_house: Callable[..., CloudHouse],
) -> None:
    house = make_house(within_s=1300.0)
    outcome = house.run(before_look=house.at((300.0, lambda: house.take(ZONE))))
    assert isinstance(outcome, Succeeded)
    assert house.where()[:2] == [BOTH, f"{BASE} + {BASE}"]
    assert len([rental for rental in house.book().rentals() if rental.intent.purpose == "run_gang-1"]) == 1


def test_what_is_added_is_refused_then_nothing_is_left_of_what_it_was_to_be_added_to(
    make_house: Callable[..., CloudHouse],
) -> None:
    """The pool looked as if it had room. The policy is asked again, and what it says instead is all that is held."""
    house = make_house()
    true_offers = house.sim_cloud.offers
    house.sim_cloud.pool(house.pools[1].offer.pool).num_free = 0
    house.sim_cloud.offers = lambda need: [replace(offer, num_nodes=8) for offer in true_offers(need)]  # type: ignore[method-assign]
    answer = house.capacity().hold(Standing(left_ratio=1.0))
    assert isinstance(answer, Waits)
    leases = [rental.intent for rental in house.book().open()]
    assert sum(each.num_nodes for each in leases) == len(house.sim_cloud.billed())
    assert all(each.offer.pool.capacity_type is CapacityType.ON_DEMAND for each in leases)


def test_a_gang_starts_on_what_is_kept_where_the_rest_takes_longer_than_another_start(
    make_house: Callable[..., CloudHouse],
) -> None:
    house = make_house(within_s=1700.0)
    house.pools[1].start_up_s = 400.0
    house.terms = replace(house.terms, patience_s=900.0)
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Succeeded)
    assert house.where()[:2] == [BASE, BOTH]


def test_what_is_added_and_does_not_come_is_given_up_and_what_is_kept_trains_on(
    make_house: Callable[..., CloudHouse],
) -> None:
    house = make_house()
    house.pools[1].start_up_s = 1e6
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Succeeded)
    assert house.where()[0] == BASE
    given_up = [rental.end.reason for rental in house.book().rentals() if rental.end is not None]
    assert any("still pending 300 s after it was ordered" in reason for reason in given_up)


NUM_DEATHS = 4


def drive(house: CloudHouse, *, fatal: int) -> list[str]:
    """Have the run go on, its worker dying at passage ``fatal``; return the passages it came by."""
    points = CrashPoints(fatal)
    look = house.at((300.0, lambda: house.take(ZONE)))
    with listening(points):
        outcome: Outcome | None = None
        for _ in range(100):
            if isinstance(outcome, Succeeded | Failed):
                break
            try:
                if outcome is None:
                    outcome = house.driver().start()
                elif isinstance(outcome, Watch):
                    outcome = house.driver().handle(house.watched(outcome, before_look=look))
            except WorkerDied:
                outcome = None
    assert isinstance(outcome, Succeeded)
    return points.passed


@pytest.mark.long
def test_a_mixed_run_whose_worker_dies_at_any_effect_goes_on_and_leaves_nothing(
    make_house: Callable[..., CloudHouse],
) -> None:
    num_passages = len(drive(make_house(within_s=1350.0), fatal=0))
    for fatal in range(2, num_passages + 1, max(1, num_passages // NUM_DEATHS)):
        shot = make_house(within_s=1350.0)
        drive(shot, fatal=fatal)
        assert shot.max_live == 1, fatal
        assert len(shot.book().open()) <= 3, fatal
        shot.renter().release()
        assert not shot.sim_cloud.billed(), fatal


# What belongs together


def rent(house: CloudHouse, purpose: str, offer: Offer, *, num_nodes: int = 2) -> None:
    wanted = replace(house.wanted(), purpose=purpose, quotes=(quote_of(offer, num_nodes=num_nodes),))
    house.renter().rent(wanted)


def rack_of(house: CloudHouse) -> RentalRack:
    return RentalRack(house.renter(), "run_gang")


def test_what_was_added_to_an_older_lease_is_no_part_of_the_newer_one(make_house: Callable[..., CloudHouse]) -> None:
    house = make_house()
    kept, spot = (pool.offer for pool in house.pools)
    rent(house, "run_gang-1", kept)
    rent(house, "run_gang-more-1", spot)
    both = rack_of(house).newest()
    assert [part.purpose for part in both.all] == ["run_gang-1", "run_gang-more-1"]
    rent(house, "run_gang-2", kept, num_nodes=4)
    rack = rack_of(house)
    assert [part.purpose for part in rack.newest().all] == ["run_gang-2"]
    assert rack.newest(among=both.purposes) == both
    assert rack.free_purpose(Role.MORE, taken=both.purposes) == "run_gang-more-2"


def test_what_was_added_alone_is_the_whole(make_house: Callable[..., CloudHouse]) -> None:
    house = make_house()
    kept, spot = (pool.offer for pool in house.pools)
    rent(house, "run_gang-1", kept)
    rent(house, "run_gang-more-1", spot)
    house.renter().give_up("run_gang-1", reason="of no use")
    alone = rack_of(house).newest()
    assert (alone.purposes, alone.more) == ({"run_gang-more-1"}, None)


def test_a_gang_stands_on_the_leases_of_its_nodes_broken_ones_too(make_house: Callable[..., CloudHouse]) -> None:
    house = make_house()
    kept, spot = (pool.offer for pool in house.pools)
    rent(house, "run_gang-1", kept)
    rent(house, "run_gang-more-1", spot)
    nodes = [node.id for part in rack_of(house).parts for node in part.lease.nodes]
    house.sim_cloud.preempt(nodes[-1])
    rack = rack_of(house)
    assert rack.under(nodes) == {"run_gang-1", "run_gang-more-1"}
    assert rack.under(nodes[:2]) == {"run_gang-1"}
    assert rack.under([NodeId("elsewhere")]) == {"run_gang-1"}
    assert rack.newest().purposes == {"run_gang-1"}
    assert rack.parts[0].lease.key.run == RUN


def test_a_run_that_holds_a_mix_trains_when_both_are_there(make_house: Callable[..., CloudHouse]) -> None:
    house = make_house()
    assert isinstance(house.capacity().hold(Standing(left_ratio=1.0)), Waits)
    house.clock.sleep(11.0)
    answer = house.capacity().hold(Standing(left_ratio=1.0))
    assert isinstance(answer, Holds)
    assert "2 on_demand nodes" in answer.reason
    assert " and 2 spot nodes" in answer.reason


def test_a_part_that_cannot_be_given_back_keeps_no_other_from_it(make_house: Callable[..., CloudHouse]) -> None:
    house = make_house()
    wanted = replace(house.wanted(), hold_s=3600.0)
    for pool, purpose in zip(house.pools, ("run_gang-1", "run_gang-more-1"), strict=True):
        house.renter().rent(replace(wanted, purpose=purpose, quotes=(quote_of(pool.offer),)))
    rack = RentalRack(house.renter(), "run_gang")
    first, second = (part.lease.id for part in rack.parts)
    release = house.sim_cloud.release

    def refuse(lease_id: LeaseId) -> None:
        if lease_id == first:
            raise CouldNotLookError("no answer")
        release(lease_id)

    house.sim_cloud.release = refuse  # type: ignore[method-assign]  # of this lease alone: no fault of SimCloud does
    with pytest.raises(CouldNotLookError, match="no answer"):
        rack.give_up(reason="done")
    assert {lease.id for lease in house.sim_cloud.find_all()} == {first} != {second}
