"""A run that its rental policy moves between pools: simulated gangs, own machines, virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.capacity import Holds, Standing, Waits
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.control.rental_memory import MemoryFile, RentalMemory, Sighting
from airflow_llmsched.control.rented_capacity import _recall
from airflow_llmsched.domain.capacity import DataAt, Offer, Requirement
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import PartlySeenError
from airflow_llmsched.planner.market.checkpoint_way import SavedState
from airflow_llmsched.planner.market.rental import RentalView
from airflow_llmsched.planner.market.rental_ways import mode_set, ways_of
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.stock import StockModel
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.scripts import SimTraining
from airflow_llmsched.units import GB
from tests.support.cloud_house import CloudHouse, both, need_of, quick_pool, spot_pool
from tests.support.crashing import CrashPoints, WorkerDied, listening
from tests.support.rented_house import HAZARDS, NUM_STEPS, RentedHouse, Zone
from tests.support.sim_house import RUN


@pytest.fixture
def house(tmp_path: Path) -> RentedHouse:
    return RentedHouse(tmp_path)


def test_a_run_with_time_takes_spot_capacity_and_no_other(house: RentedHouse) -> None:
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Succeeded)
    assert outcome.last_step == NUM_STEPS
    assert house.where() == ["lent"]
    assert len(house.book().rentals()) == 1


def test_a_gang_on_spot_capacity_that_is_taken_goes_on_elsewhere_and_is_in_time(house: RentedHouse) -> None:
    started_s = house.clock.now_s()
    outcome = house.run(before_look=house.at((500.0, lambda: house.take("lent"))))
    assert isinstance(outcome, Succeeded)
    assert house.clock.now_s() < started_s + 4000.0
    assert house.where()[0] == "lent"
    assert house.where()[-1] == "owned"
    (broken,) = [each for each in house.book().rentals() if each.intent.offer.pool.zone == "lent"]
    assert broken.end is not None
    assert len(house.book().open()) == 1


def test_a_run_without_time_to_lose_is_on_demand_from_the_start(tmp_path: Path) -> None:
    house = RentedHouse(tmp_path)
    hurried = RentedHouse(tmp_path, deadline_s=house.clock.now_s() + 2100.0)
    outcome = hurried.run(before_look=hurried.at())
    assert isinstance(outcome, Succeeded)
    assert hurried.where() == ["owned"]


def test_a_run_whose_time_gets_short_on_spot_capacity_is_moved_while_it_trains(tmp_path: Path) -> None:
    """Nothing is taken from it: one tick more and a loss could not be made good any more."""
    slow = RentedHouse(tmp_path)
    house = RentedHouse(tmp_path, deadline_s=slow.clock.now_s() + 2400.0)
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Succeeded)
    reasons = [event.reason for event in house.journal.read() if isinstance(event, ev.Reviewed) and not event.keeps]
    assert len(house.where()) == len(reasons) + 1
    assert not any(isinstance(event, ev.FaultDetected | ev.GangEnded) and event.fault for event in house.journal.read())


def test_a_cheaper_place_is_moved_to_with_a_checkpoint_and_nothing_is_done_twice(house: RentedHouse) -> None:
    house.price("lent", 1.5)  # dearer than on demand: no offer
    outcome = house.run(before_look=house.at((400.0, lambda: house.price("lent", 0.1))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == ["owned", "lent"]
    first, second = house.steps()
    assert second[0] == first[-1] + 1
    (move,) = [event for event in house.journal.read() if isinstance(event, ev.Reviewed) and not event.keeps]
    assert "spot nodes of sim in onprem lent" in move.reason


def test_a_reservation_with_too_few_nodes_makes_no_on_demand_capacity_look_free(house: RentedHouse) -> None:
    house.zones["block"] = Zone(nodes=("n9",), capacity="reserved", usd_per_hour=0.0)
    house.write_inventory()
    assert isinstance(house.run(before_look=house.at()), Succeeded)
    assert house.where() == ["lent"]


def test_a_spike_that_prices_always_came_back_from_keeps_no_run_from_spot_capacity(tmp_path: Path) -> None:
    """At 0.99 of the on-demand price spot capacity is worth no interruption; at what it cost before, it is."""
    pool = "onprem/home/lent/sim/spot"
    reasons = []
    for name, prices in (("new", []), ("known", ([0.2] * 7 + [0.99]) * 8 + [0.2] * 7)):
        (tmp_path / name).mkdir()
        house = RentedHouse(tmp_path / name, changeover_s=120.0)
        house.price("lent", 0.99)
        now_s, memory = house.clock.now_s(), RentalMemory()
        for number, usd in enumerate(prices):
            at_s = now_s - (len(prices) - number) * house.terms.tick_s
            memory = memory.seen(Sighting(at_s=at_s, up={}, in_stock=True, usd_per_hour={pool: usd}))
        MemoryFile(house.store, RUN).write(memory)
        held = house.capacity().hold(Standing(left_ratio=1.0))
        assert isinstance(held, Holds)
        reasons.append(held.reason)
        assert MemoryFile(house.store, RUN).read().prices[pool][-1] == (now_s, 0.99)
    assert reasons[0].startswith("2 on_demand nodes of sim in onprem owned")
    assert "expected" not in reasons[0]
    assert reasons[1].startswith("2 spot nodes of sim in onprem lent")
    assert "a spot node of sim in onprem lent costs $0.99 an hour now, and $0.2" in reasons[1]


@pytest.mark.parametrize(("correlation", "expected"), [(1.0, CapacityType.SPOT), (0.9, CapacityType.ON_DEMAND)])
def test_a_large_gang_takes_spot_capacity_only_where_its_pool_is_lost_as_one(
    tmp_path: Path, correlation: float, expected: CapacityType
) -> None:
    need = replace(need_of(64, pace=320.0), shared_loss_ratio=correlation)
    pools = [quick_pool(num_free=64), spot_pool(num_free=64, usd_per_hour=24.0)]
    house = CloudHouse(tmp_path, *pools, need=need, changeover_s=600.0, slack_s=0.0)
    house.terms = replace(house.terms, deadline_s=house.clock.now_s() + 24_000.0)
    house.capacity().hold(Standing(left_ratio=1.0))
    (rental,) = house.book().rentals()
    assert (rental.intent.num_nodes, rental.intent.offer.pool.capacity_type) == (64, expected)


# Moves of other kinds: one cloud, two regions, shapes and sizes

EAST, WEST = "sim-east-a", "sim-west-a"


def two_regions(folder: Path, *, egress_usd: float, data_s: float = 60.0, **terms: float | None) -> CloudHouse:
    data = DataAt(
        cloud="sim",
        region="sim-east",
        num_bytes=1_000_000_000,
        egress_usd_per_byte=egress_usd / 1e9,
        bytes_per_s=1e9 / data_s,
    )
    pools = [quick_pool(), spot_pool(), quick_pool(region="sim-west"), spot_pool(region="sim-west")]
    house = CloudHouse(folder, *pools, need=need_of(2, data=(data,)), **terms)
    house.price(EAST, 60.0)  # no offer
    house.price(WEST, 60.0)
    return house


def test_a_run_moves_to_another_region_with_its_checkpoint_when_that_pays_for_the_way(tmp_path: Path) -> None:
    house = two_regions(tmp_path, egress_usd=1.0)
    outcome = house.run(before_look=house.at((400.0, lambda: house.price(WEST, 4.0))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"2 on_demand sim.8x {EAST}", f"2 spot sim.8x {WEST}"]
    first, second = house.steps()
    assert second[0] == first[-1] + 1
    house.renter().release()
    assert not house.sim_cloud.billed()


class StoringHouse(CloudHouse):
    """The western region reads another storage than the run begins in. Copies take as long as they take."""

    west = "mem/west/run"
    copied: list[tuple[str, str]]

    def copy(self, source: str, target: str) -> int:
        self.copied.append((source, target))
        self.clock.sleep(20.0)
        return super().copy(source, target)


def test_a_run_that_moves_to_a_region_with_a_storage_of_its_own_takes_its_checkpoint_along(tmp_path: Path) -> None:
    pools = [quick_pool(), spot_pool(), quick_pool(region="sim-west"), spot_pool(region="sim-west")]
    house = StoringHouse(tmp_path, *pools)
    house.copied = []
    west = CheckpointPlace(root=house.west, node_root=house.west, storage="sim/sim-west")
    house.context = replace(house.context, places={"sim/sim-west": west})
    house.price(EAST, 60.0)  # no offer
    house.price(WEST, 60.0)
    outcome = house.run(before_look=house.at((400.0, lambda: house.price(WEST, 4.0))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"2 on_demand sim.8x {EAST}", f"2 spot sim.8x {WEST}"]
    ((source, target),) = house.copied
    assert source.startswith("mem/checkpoints/")
    assert target == source.replace("mem/checkpoints", house.west)
    first, second = house.steps()
    assert second[0] == first[-1] + 1
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.path.startswith(house.west)
    roots = [event.checkpoint_root for event in house.journal.read() if isinstance(event, ev.LaunchIntended)]
    assert roots == ["mem/checkpoints", house.west]
    (chosen,) = [each for each in house.journal.read() if isinstance(each, ev.CheckpointChosen) and each.checkpoint]
    assert "brought from the run's own folder to sim/sim-west" in chosen.note


def storing(folder: Path, *, egress_usd: float) -> StoringHouse:
    """Both regions have storages of their own, and a checkpoint is a gigabyte."""
    pools = [quick_pool(), spot_pool(), quick_pool(region="sim-west"), spot_pool(region="sim-west")]
    saved = SavedState(num_bytes=GB, egress_usd_per_gb=egress_usd)
    house = StoringHouse(folder, *pools, checkpoint=saved)
    house.copied = []
    places = {
        f"sim/{region}": CheckpointPlace(root=root, node_root=root, storage=f"sim/{region}")
        for region, root in (("sim-east", "mem/east/run"), ("sim-west", house.west))
    }
    house.context = replace(house.context, places=places)
    return house


@pytest.mark.parametrize(("egress_usd", "num_moves"), [(1.0, 1), (100.0, 0)])
def test_a_checkpoint_that_costs_more_to_bring_than_the_move_saves_keeps_a_run_where_it_is(
    tmp_path: Path, egress_usd: float, num_moves: int
) -> None:
    house = storing(tmp_path, egress_usd=egress_usd)
    house.price(EAST, 60.0)  # no offer
    house.price(WEST, 60.0)
    outcome = house.run(before_look=house.at((400.0, lambda: house.price(WEST, 4.0))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"2 on_demand sim.8x {EAST}", f"2 spot sim.8x {WEST}"][: 1 + num_moves]
    assert len(house.copied) == num_moves


@pytest.mark.parametrize(
    ("saved_in", "zone"), [("", EAST), ("sim/sim-east", EAST), ("sim/sim-west", WEST), ("lustre", EAST)]
)
def test_with_nothing_held_ways_are_counted_from_where_the_checkpoint_lies(
    tmp_path: Path, saved_in: str, zone: str
) -> None:
    """So it changes as a run moves: the first region, a little cheaper, is then the one that costs a way."""
    house = storing(tmp_path, egress_usd=2.0)
    house.price(WEST, 4.5)
    answer = house.capacity().hold(Standing(left_ratio=0.5, saved_in=saved_in))
    assert isinstance(answer, Holds | Waits), answer
    (lease,) = house.sim_cloud.find_all()
    assert (lease.pool.zone, lease.pool.capacity_type) == (zone, CapacityType.SPOT)


def test_a_run_that_lost_its_gang_pays_for_the_way_from_where_its_checkpoint_lies(tmp_path: Path) -> None:
    """Though the other region is what all others are measured by, as on-demand capacity is cheaper there."""
    house = storing(tmp_path, egress_usd=2.0)
    house.price(WEST, 4.5)
    house.pools[2].offer = replace(house.pools[2].offer, usd_per_hour=48.0)
    house.capacity().hold(Standing(left_ratio=0.5, saved_in="sim/sim-west"))
    (lease,) = house.sim_cloud.find_all()
    assert lease.pool.zone == WEST


def test_a_region_whose_data_costs_more_to_bring_than_it_saves_is_left_alone(tmp_path: Path) -> None:
    house = two_regions(tmp_path, egress_usd=100.0)
    outcome = house.run(before_look=house.at((400.0, lambda: house.price(WEST, 4.0))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"2 on_demand sim.8x {EAST}"]


def test_a_region_whose_data_takes_longer_to_bring_than_there_is_time_is_left_alone(tmp_path: Path) -> None:
    house = two_regions(tmp_path, egress_usd=0.0, data_s=2500.0)
    outcome = house.run(before_look=house.at((400.0, lambda: house.price(WEST, 4.0))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"2 on_demand sim.8x {EAST}"]


def test_a_run_moves_to_another_shape_and_is_as_large_there_as_it_was_planned_for_it(tmp_path: Path) -> None:
    need = both(need_of(2), need_of(4, shape="sim.small"))
    small = spot_pool("b", shape="sim.small", usd_per_hour=60.0)
    house = CloudHouse(tmp_path, quick_pool(), quick_pool("b", shape="sim.small"), small, need=need)
    outcome = house.run(before_look=house.at((400.0, lambda: house.price("sim-east-b", 2.0))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"2 on_demand sim.8x {EAST}", "4 spot sim.small sim-east-b"]
    sizes = [len(each.plan.placement.slots) for each in house.attempts()]
    assert sizes == [4, 8]
    first, second = house.steps()
    assert second[0] == first[-1] + 1


def test_a_run_is_scaled_down_when_a_smaller_gang_is_cheaper_and_still_in_time(tmp_path: Path) -> None:
    house = CloudHouse(tmp_path, quick_pool(), spot_pool(num_free=2, usd_per_hour=60.0), need=need_of(2, 4))
    house.terms = replace(house.terms, deadline_s=house.clock.now_s() + 2400.0)
    house.terms = replace(house.terms, need=need_of(4))
    larger = house.at((400.0, lambda: _offer_smaller(house)))
    outcome = house.run(before_look=larger)
    assert isinstance(outcome, Succeeded)
    assert house.where() == [f"4 on_demand sim.8x {EAST}", f"2 spot sim.8x {EAST}"]
    assert [len(each.plan.placement.slots) for each in house.attempts()] == [8, 4]


def _offer_smaller(house: CloudHouse) -> None:
    house.terms = replace(house.terms, need=need_of(2, 4))
    house.price(EAST, 4.0)


def test_a_run_waits_for_spot_capacity_while_there_is_time_and_pays_for_nothing(tmp_path: Path) -> None:
    start_s = RentedHouse(tmp_path).clock.now_s()
    house = RentedHouse(tmp_path, deadline_s=start_s + 20_000.0)
    house.take("lent")
    outcome = house.run(before_look=house.at((600.0, lambda: house.give_back("lent"))))
    assert isinstance(outcome, Succeeded)
    assert house.where() == ["lent"]
    waits = [event.reason for event in house.journal.read() if isinstance(event, ev.PlanRefused)]
    assert waits == ["waits for spot capacity: there is time"] * len(waits)
    assert len(waits) >= 5


def test_on_demand_capacity_that_runs_out_is_missed_by_a_run_that_was_not_told(tmp_path: Path) -> None:
    start_s = RentedHouse(tmp_path).clock.now_s()
    house = RentedHouse(tmp_path, deadline_s=start_s + 4400.0)
    house.take("lent")
    house.run(before_look=house.at((2000.0, lambda: house.take("owned")), (4000.0, lambda: house.give_back("owned"))))
    assert house.clock.now_s() > start_s + 4400.0


def test_on_demand_capacity_that_runs_out_is_ordered_early_and_the_risk_is_stated(tmp_path: Path) -> None:
    start_s = RentedHouse(tmp_path).clock.now_s()
    stock = StockModel(out_per_hour=0.2, back_per_hour=12.0)
    house = RentedHouse(tmp_path, deadline_s=start_s + 4400.0, stock=stock, max_late_ratio=0.001)
    house.take("lent")
    house.run(before_look=house.at())
    (attempt,) = house.attempts()
    assert attempt.launched_at_s < start_s + 2000.0
    assert house.clock.now_s() < start_s + 4400.0
    waits = [event.reason for event in house.journal.read() if isinstance(event, ev.PlanRefused)]
    assert len(waits) > 5
    assert all("; late with a probability of " in each for each in waits), waits
    assert {"at most 0.0" in each or "less than 0.01%" in each for each in waits} == {True}, waits


def test_what_earlier_processes_saw_of_the_pools_is_not_forgotten(house: RentedHouse) -> None:
    house.run(before_look=house.at())
    memory = MemoryFile(house.store, RUN).read()
    assert len(memory.sightings) >= NUM_STEPS // 120 - 2
    (name,) = {name for sighting in memory.sightings for name in sighting.up}
    assert name == "onprem/home/lent/sim/spot/2"
    assert all(sighting.up[name] for sighting in memory.sightings)


def test_money_without_a_date_buys_the_soonest_one_it_is_good_for(tmp_path: Path) -> None:
    on_demand_usd = 2 * NUM_STEPS / 3600
    plenty = RentedHouse(tmp_path, deadline_s=None, max_usd=1.5 * on_demand_usd)
    assert isinstance(plenty.run(before_look=plenty.at()), Succeeded)
    scarce = RentedHouse(tmp_path, deadline_s=None, max_usd=0.45 * on_demand_usd)
    assert isinstance(scarce.run(before_look=scarce.at()), Succeeded)
    rich, poor = (MemoryFile(each.store, RUN).read().deadline_s or 0.0 for each in (plenty, scarce))
    assert rich < poor
    assert scarce.renter().spent_usd() < 0.45 * on_demand_usd


def test_money_that_pays_for_no_way_is_said_at_once_and_nothing_is_rented(tmp_path: Path) -> None:
    house = RentedHouse(tmp_path, deadline_s=None, max_usd=0.01)
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Failed)
    assert "raise budget.max_usd" in outcome.reason
    assert not house.book().rentals()


def test_own_machines_that_cost_nothing_are_taken_at_once_for_any_sum(tmp_path: Path) -> None:
    house = RentedHouse(tmp_path, deadline_s=None, max_usd=0.01)
    house.price("owned", 0.0)
    assert isinstance(house.run(before_look=house.at()), Succeeded)
    assert house.where() == ["owned"]
    assert house.renter().spent_usd() == 0.0


def test_a_policy_without_date_and_sum_is_refused(tmp_path: Path) -> None:
    house = RentedHouse(tmp_path, deadline_s=None)
    outcome = house.run(before_look=house.at())
    assert isinstance(outcome, Failed)
    assert "set budget.deadline or budget.max_usd" in outcome.reason


@pytest.mark.timeout(600)  # many runs: seconds of work, minutes on a machine that others use
def test_a_run_whose_pools_come_and_go_is_in_time_whatever_they_do(tmp_path: Path) -> None:
    for period_s in (150.0, 310.0, 700.0):
        house = RentedHouse(tmp_path)
        deadline_s = house.clock.now_s() + 4000.0
        moments = [(period_s * number, house.take if number % 2 else house.give_back) for number in range(1, 30)]
        outcome = house.run(before_look=house.at(*((at_s, _on(act, "lent")) for at_s, act in moments)))
        assert isinstance(outcome, Succeeded), period_s
        assert house.clock.now_s() < deadline_s
        assert house.max_live == 1
        assert len(house.book().open()) <= 1


def _on(act, zone):  # type: ignore[no-untyped-def]
    return lambda: act(zone)


NUM_DEATHS = 3


def drive(house: RentedHouse, *, fatal: int, until_s: float) -> list[str]:
    """Have the run go on, its worker dying at passage ``fatal``; return the passages it came by."""
    points = CrashPoints(fatal)
    look = house.at(
        (100.0, lambda: house.price("lent", 0.1)),
        (300.0, lambda: house.take("lent")),
    )
    with listening(points):
        outcome: Outcome | None = None
        while not isinstance(outcome, Succeeded | Failed) and house.clock.now_s() < until_s:
            try:
                if outcome is None:
                    outcome = house.driver().start()
                elif isinstance(outcome, Watch):
                    outcome = house.driver().handle(house.watched(outcome, before_look=look))
            except WorkerDied:
                outcome = None
        assert isinstance(outcome, Succeeded)
    return points.passed


def test_a_run_whose_worker_dies_at_any_effect_while_it_moves_is_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    """Two moves: to where it is cheaper, and away from what was taken. No two gangs, one lease at most, then none."""

    def house() -> RentedHouse:
        training = SimTraining(num_steps=400, work_s=4.0, save_s=1.0, checkpoint_interval_steps=50)
        deadline_s = VirtualClock().now_s() + 800.0
        made = RentedHouse(tmp_path, training=training, deadline_s=deadline_s)
        made.price("lent", 1.5)
        return made

    first = house()
    num_passages = len(drive(first, fatal=0, until_s=first.clock.now_s() + 1000.0))
    assert first.where() == ["owned", "lent", "owned"]
    for fatal in range(1, num_passages + 1, max(1, num_passages // NUM_DEATHS)):
        shot = house()
        drive(shot, fatal=fatal, until_s=shot.clock.now_s() + 1000.0)
        assert shot.max_live == 1, fatal
        assert len(shot.book().open()) <= 1, fatal
        shot.renter().release()
        assert not shot.cloud().find_all(), fatal


def test_a_bought_block_for_half_of_the_gang_is_kept_and_spot_capacity_is_added_to_it(tmp_path: Path) -> None:
    """It costs nothing more: neither is the other half free for that, nor is it cheap to be late."""
    block = quick_pool(capacity_type=CapacityType.RESERVED, usd_per_hour=0.0, num_free=2)
    house = CloudHouse(tmp_path, block, quick_pool(), spot_pool(), need=need_of(2, 4))
    deadline_s = house.clock.now_s() + 1500.0
    house.terms, house.context = (replace(each, deadline_s=deadline_s) for each in (house.terms, house.context))
    assert isinstance(house.run(before_look=house.at()), Succeeded)
    assert house.where() == [f"2 reserved sim.8x {EAST} + 2 spot sim.8x {EAST}"]
    assert house.clock.now_s() < deadline_s
    assert [each.intent.offer.pool.capacity_type.value for each in house.book().rentals()] == ["reserved", "spot"]


@pytest.mark.parametrize(
    ("until_s", "patience_s", "places"),
    [
        (900.0, 300.0, [EAST]),
        (9000.0, 300.0, [EAST]),
        (9000.0, 3000.0, [EAST, WEST]),  # if capacity elsewhere takes that long to come, there is no time to stay
    ],
)
def test_a_gang_whose_region_does_not_say_what_it_offers_stays_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until_s: float, patience_s: float, places: list[str]
) -> None:
    """It left for dear on-demand capacity elsewhere, and came back: a list that is late is no reason to move."""
    house = two_regions(tmp_path, egress_usd=0.0, patience_s=patience_s)
    house.price(EAST, 4.0)
    whole = house.sim_cloud.offers

    def but_the_east(need: Requirement) -> NoReturn:
        seen = [offer for offer in whole(need) if offer.pool.region != "sim-east"]
        raise PartlySeenError("sim-east does not answer", seen=seen, unseen=["sim-east"])

    def have(offers: Callable[[Requirement], Sequence[Offer]]) -> None:
        monkeypatch.setattr(house.sim_cloud, "offers", offers)

    outcome = house.run(before_look=house.at((400.0, lambda: have(but_the_east)), (until_s, lambda: have(whole))))
    assert isinstance(outcome, Succeeded)
    assert [each.rpartition(" ")[2] for each in house.where()] == places


def test_a_region_that_did_not_answer_was_as_it_had_been(tmp_path: Path) -> None:
    """Silence is no loss: a policy that took it for one would hold good pools for bad."""
    house = two_regions(tmp_path, egress_usd=0.0)
    seen = []

    class Recorder(SpotPolicy):
        def see(self, view: RentalView) -> None:
            seen.append([bool(up) for up in view.up_ZN[:, 0]])

    names = ["sim/east/east-a/s/spot/2", "sim/west/west-a/s/spot/2"]
    memory = RentalMemory()
    for at_s, up, unseen in (
        (1.0, {names[0]: True, names[1]: True}, ()),
        (2.0, {names[0]: False}, ("sim/west",)),
        (3.0, {names[0]: True}, ("sim",)),
        (4.0, {names[0]: True}, ()),
    ):
        memory = memory.seen(Sighting(at_s=at_s, up=up, in_stock=True, unseen=unseen))
    ways = ways_of(house.survey({}, 1.0).market.quotes, house.terms.need)
    modes = mode_set(ways, time_s=4000.0, work_ratio=1.0, changeover_s=40.0)
    _recall(Recorder(HAZARDS, modes=modes), memory, names, modes, deadline_s=100.0)
    assert seen == [[True, True], [False, True], [True, True], [True, False]]
