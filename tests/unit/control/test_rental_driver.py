"""A run on the capacity its policy chooses: by the same policies and traces as in replays, but rented from a cloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from airflow_llmsched.control.rental_driver import Held, RentalDriver
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.planner.layout_table import BoolArray
from airflow_llmsched.planner.market.baselines import GreedySpot, OnDemandOnly, UniformProgress
from airflow_llmsched.planner.market.forecast import AvailabilityTrace, fit
from airflow_llmsched.planner.market.rental import Holding, RentalPolicy
from airflow_llmsched.planner.market.rental_ways import Way
from airflow_llmsched.planner.market.replay import replay
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.units import HOUR_S
from tests.support.crashing import CrashPoints, WorkerDied, listening
from tests.support.lease_house import LeaseHouse, quote_of
from tests.support.sim_cloud import SimCloudHarness, sim_pool

TICK_S = 600.0
TERMS = SpotTerms(time_s=15 * HOUR_S, work_s=10 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
SPOT_USD, DEMAND_USD = 12.0, 40.0


def trace_of(seed: int, *, num_ticks: int = 400, up_ticks: float = 18.0, down_ticks: float = 9.0) -> BoolArray:
    """Draw a pool that is up and down for exponential spells."""
    rng = np.random.default_rng(seed)
    up: list[bool] = []
    while len(up) < num_ticks:
        up += [True] * (1 + int(rng.exponential(up_ticks))) + [False] * (1 + int(rng.exponential(down_ticks)))
    return np.array(up[:num_ticks])


POLICIES: dict[str, Callable[[], RentalPolicy]] = {
    "ours": lambda: SpotPolicy(fit([AvailabilityTrace(TICK_S, trace_of(seed)) for seed in range(100, 104)])),
    "greedy": GreedySpot,
    "uniform progress": UniformProgress,
    "on-demand only": OnDemandOnly,
}


@dataclass
class Job:
    """A run on a simulated cloud whose spot pools follow traces."""

    house: LeaseHouse
    up_ZT: BoolArray
    policy: RentalPolicy
    work_s: float = TERMS.work_s
    overhead_s: float = 0.0
    tick: int = 0

    @classmethod
    def of(cls, up_ZT: BoolArray, policy: RentalPolicy) -> Job:
        zones = "bcdef"[: len(up_ZT)]
        spots = [sim_pool(z, capacity_type=CapacityType.SPOT, usd_per_hour=SPOT_USD, num_free=0) for z in zones]
        for pool in spots:
            pool.start_up_s = 0.0
        demand = sim_pool("a", usd_per_hour=DEMAND_USD, num_free=1000)
        demand.start_up_s = 0.0
        house = LeaseHouse(SimCloudHarness(demand, *spots))
        return cls(house, up_ZT, policy)

    @property
    def harness(self) -> SimCloudHarness:
        assert isinstance(self.house.harness, SimCloudHarness)
        return self.house.harness

    @property
    def spots(self) -> Sequence[Offer]:
        return [pool.offer for pool in self.harness.pools[1:]]

    def driver(self, *, left_s: float = TERMS.time_s) -> RentalDriver:
        pools = self.harness.cloud
        terms = SpotTerms(
            time_s=max(left_s, TICK_S), work_s=TERMS.work_s, changeover_s=TERMS.changeover_s, spot_ratio=0.3
        )
        return RentalDriver(
            self.house.renter(),
            self.policy,
            terms=terms,
            ways=[
                Way(
                    work_s=TERMS.work_s,
                    spot=tuple(quote_of(offer, num_nodes=1) for offer in self.spots),
                    demand=(quote_of(self.harness.offer(), num_nodes=1),),
                )
            ],
            wanted=self.house.wanted([]),
            is_up=lambda stock: pools.pool(stock.pool).num_free > 0,
            clock=self.house.clock,
        )

    def let_the_market_move(self) -> None:
        """Have each pool be as its trace says in this tick: what is held there goes when it is down."""
        for offer, up_T in zip(self.spots, self.up_ZT, strict=True):
            self.harness.run_short(offer, num_nodes=1000 if up_T[self.tick] else 0)
            for lease in self.harness.cloud.find_all():
                if lease.pool == offer.pool and not up_T[self.tick]:
                    for node in lease.nodes:
                        self.harness.preempt(node.id)

    def compute(self, held: Held) -> None:
        """Let a tick pass on what is held."""
        if held.is_new:
            self.overhead_s = TERMS.changeover_s
        if held.holding is Holding.NOTHING:
            self.overhead_s = 0.0
        used_s = 0.0 if held.holding is Holding.NOTHING else TICK_S
        self.work_s -= min(self.work_s, max(0.0, used_s - self.overhead_s))
        self.overhead_s = max(0.0, self.overhead_s - used_s)
        with suppress(WorkerDied):  # another process, which comes again
            self.house.keep()
        self.tick += 1
        self.harness.advance(TICK_S)

    def run(self, driver: RentalDriver) -> list[Holding]:
        held = []
        for _ in range(int(TERMS.time_s / TICK_S)):
            self.let_the_market_move()
            now = driver.tick(work_s=self.work_s, overhead_s=self.overhead_s, tick_s=TICK_S)
            held.append(now.holding)
            self.compute(now)
        driver.tick(work_s=0.0, overhead_s=0.0, tick_s=TICK_S)
        return held


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("num_zones", [1, 3])
def test_a_rented_run_is_in_time_and_costs_what_its_replay_does(name: str, num_zones: int) -> None:
    for seed in range(4):
        up_ZT = np.stack([trace_of(10 * seed + zone) for zone in range(num_zones)])
        job = Job.of(up_ZT, POLICIES[name]())
        job.run(job.driver())
        assert job.work_s == 0.0
        assert job.harness.billed() == frozenset()
        expected = replay(up_ZT, tick_s=TICK_S, starts_N=np.array([0]), terms=TERMS, policy=POLICIES[name]())
        assert expected.in_time_N.all()
        # What is rented is held to the end of its last tick, which a replay pays only in part.
        expected_usd = float(expected.cost_s_N[0]) / HOUR_S * DEMAND_USD
        assert job.harness.cloud.spent_usd() == pytest.approx(expected_usd, abs=1.5 * TICK_S / HOUR_S * DEMAND_USD)


def test_a_run_whose_driver_dies_at_any_effect_is_in_time_and_leaves_nothing() -> None:
    up_ZT = np.stack([trace_of(7), trace_of(8)])
    num_passages = _passages(Job.of(up_ZT, GreedySpot()))
    assert num_passages > 20
    for fatal in range(1, num_passages + 1, 3):
        job = Job.of(up_ZT, GreedySpot())
        drivers = [job.driver()]

        def tick(work_s: float, job: Job = job, drivers: list[RentalDriver] = drivers) -> Held:
            try:
                return drivers[-1].tick(work_s=work_s, overhead_s=job.overhead_s, tick_s=TICK_S)
            except WorkerDied:
                drivers.append(job.driver(left_s=TERMS.time_s - job.tick * TICK_S))
                return drivers[-1].tick(work_s=work_s, overhead_s=TERMS.changeover_s, tick_s=TICK_S)

        with listening(CrashPoints(fatal)):
            while job.tick < int(TERMS.time_s / TICK_S):
                job.let_the_market_move()
                job.compute(tick(job.work_s))
                assert len(job.harness.cloud.find_all()) <= 1
            tick(0.0)
        assert job.work_s == 0.0, fatal
        assert job.harness.billed() == frozenset(), fatal


def _passages(job: Job) -> int:
    points = CrashPoints()
    with listening(points):
        job.run(job.driver())
    return len(points.passed)


def test_a_pool_that_refuses_counts_as_down_and_costs_nothing_that_is_held() -> None:
    job = Job.of(np.stack([trace_of(1)]), GreedySpot())
    driver = job.driver()
    job.harness.run_short(job.spots[0], num_nodes=0)
    driver._is_up = lambda _stock: True  # it looked as if there were some
    held = driver.tick(work_s=TERMS.work_s, overhead_s=0.0, tick_s=TICK_S)
    assert held.holding is not Holding.SPOT
    assert len(job.harness.billed()) == (held.lease is not None)


def test_on_demand_capacity_that_is_out_of_stock_is_done_without_while_there_is_spot() -> None:
    """Due by the clock: ours orders on-demand capacity, is refused, and takes what there is until it comes back."""
    job = Job.of(np.ones((1, 400), dtype=bool), POLICIES["ours"]())
    driver = job.driver(left_s=TERMS.work_s + TERMS.changeover_s)
    job.let_the_market_move()
    job.harness.run_short(job.harness.offer(), num_nodes=0)
    held = driver.tick(work_s=TERMS.work_s, overhead_s=0.0, tick_s=TICK_S)
    assert (held.holding, held.is_new) == (Holding.SPOT, True)
    job.compute(held)
    assert driver.tick(work_s=job.work_s, overhead_s=job.overhead_s, tick_s=TICK_S).holding is Holding.SPOT
    job.harness.run_short(job.harness.offer(), num_nodes=1000)
    assert driver.tick(work_s=job.work_s, overhead_s=job.overhead_s, tick_s=TICK_S).holding is Holding.ON_DEMAND
    assert len(job.harness.billed()) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_run_that_needs_on_demand_capacity_and_gets_neither_says_so_and_goes_on_when_it_is_back(name: str) -> None:
    job = Job.of(np.zeros((1, 400), dtype=bool), POLICIES[name]())
    driver = job.driver(left_s=TERMS.work_s + TERMS.changeover_s)
    job.let_the_market_move()
    job.harness.run_short(job.harness.offer(), num_nodes=0)
    for _ in range(2):
        with pytest.raises(CapacityError):
            driver.tick(work_s=TERMS.work_s, overhead_s=0.0, tick_s=TICK_S)
        assert job.harness.billed() == frozenset()
    job.harness.run_short(job.harness.offer(), num_nodes=1000)
    assert driver.tick(work_s=TERMS.work_s, overhead_s=0.0, tick_s=TICK_S).holding is Holding.ON_DEMAND


def test_on_demand_capacity_that_is_out_of_stock_is_said() -> None:
    job = Job.of(np.stack([trace_of(1)]), OnDemandOnly())
    job.harness.run_short(job.harness.offer(), num_nodes=0)
    with pytest.raises(CapacityError):
        job.driver().tick(work_s=TERMS.work_s, overhead_s=0.0, tick_s=TICK_S)
    assert job.harness.billed() == frozenset()
