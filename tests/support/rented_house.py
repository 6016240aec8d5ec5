"""A simulated house whose run is trained on what its rental policy rents: own machines, some lent as spot capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from airflow_llmsched.clouds.onprem.cloud import OnPremCloud
from airflow_llmsched.control.lease_book import LeaseBook
from airflow_llmsched.control.lease_keeping import LeaseKeeper
from airflow_llmsched.control.market import Survey, survey_market
from airflow_llmsched.control.rental_memory import MemoryFile
from airflow_llmsched.control.rented_capacity import RentalTerms, RentedCapacity
from airflow_llmsched.control.renting import CloudChoice, Renter, Wanted
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.identity import NodeId, RunOrigin
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices, PricesSeen
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.pools import model_of
from tests.support.sim_house import RUN, SimHouse, greedy_planner, tree_of, workload_of

NUM_STEPS = 2000
"""Of a second each: on two nodes of two slots."""

STEP_WORK_S = 4.0
HAZARDS = model_of(loss_per_hour=0.5, return_per_hour=1.0)
"""One kind of pool, so that tables are small."""

ORIGIN = RunOrigin(deployment_id="here", run=RUN, dag_id="pretrain", run_id="manual")


@dataclass
class Zone:
    """Some nodes of the house. What is ``down`` has been taken away."""

    nodes: tuple[str, ...]
    capacity: str
    usd_per_hour: float
    down: set[str] = field(default_factory=set)


class RentedHouse(SimHouse):
    """Nodes n0 and n1 are lent as spot capacity, n2 and n3 on demand; ``terms`` may be changed."""

    def __init__(self, folder: Path, *, training: SimTraining | None = None, **terms: Any) -> None:
        training = training or SimTraining(
            num_steps=NUM_STEPS, work_s=STEP_WORK_S, init_s=5.0, save_s=1.0, checkpoint_interval_steps=50
        )
        super().__init__(training=training, tree=tree_of(num_nodes=4), workload=workload_of(hang_limit_s=600.0))
        self.zones = {
            "lent": Zone(nodes=("n0", "n1"), capacity="spot", usd_per_hour=0.3),
            "owned": Zone(nodes=("n2", "n3"), capacity="on_demand", usd_per_hour=1.0),
        }
        self._file = folder / "inventory.yaml"
        self.write_inventory()
        self.terms = replace(
            RentalTerms(
                need=Requirement(by_shape={"sim": ShapeNeed(num_nodes=2, work_s=float(training.num_steps))}),
                deadline_s=self.clock.now_s() + 4000.0,
                max_usd=None,
                num_tokens=1_000_000,
                num_steps=training.num_steps,
                tick_s=120.0,
                slack_s=15.0,
                changeover_s=40.0,
                patience_s=300.0,
            ),
            **terms,
        )
        self.context = replace(
            self.context,
            review_every_s=self.terms.tick_s,
            deadline_s=self.terms.deadline_s,
            poll_interval_s=10.0,
        )

    def write_inventory(self) -> None:
        """Have the fleet be as ``zones`` say."""
        pools = [
            {
                "zone": name,
                "shape": "sim",
                "capacity": zone.capacity,
                "num_slots": 2,
                "usd_per_hour": zone.usd_per_hour,
                "nodes": [
                    {"name": node, **({"unusable": "taken back"} if node in zone.down else {})} for node in zone.nodes
                ],
            }
            for name, zone in self.zones.items()
        ]
        self._file.write_text(yaml.safe_dump({"region": "home", "pools": pools}))

    def take(self, zone: str) -> None:
        """Take a zone's nodes back, and the ranks on them with it."""
        for node in self.zones[zone].nodes:
            if node not in self.zones[zone].down:
                self.zones[zone].down.add(node)
                self.engine.preempt(NodeId(node), grace_s=0.0)
        self.write_inventory()

    def give_back(self, zone: str) -> None:
        """Have a zone's nodes be there again."""
        for node in self.zones[zone].down:
            self.engine._nodes[NodeId(node)].down_reason = None
        self.zones[zone].down.clear()
        self.write_inventory()

    def price(self, zone: str, usd_per_hour: float) -> None:
        self.zones[zone].usd_per_hour = usd_per_hour
        self.write_inventory()

    def cloud(self, _name: str = "onprem", _options: Mapping[str, Any] | None = None) -> OnPremCloud:
        return OnPremCloud(inventory=str(self._file), store=self.store, clock=self.clock)

    def book(self) -> LeaseBook:
        return LeaseBook(self.store, RUN)

    def renter(self) -> Renter:
        return Renter(self.book(), open_cloud=self.cloud, clock=self.clock)

    def survey(self, prices: PricesSeen, work_ratio: float) -> Survey:
        now_s = self.clock.now_s()
        return survey_market(
            self.terms.need,
            [self.cloud()],
            lambda sources: sources[0],
            now_s=now_s,
            prices=ExpectedPrices(prices, now_s=now_s, work_ratio=work_ratio),
        )

    def wanted(self) -> Wanted:
        return Wanted(
            purpose="run_gang",
            generation=0,
            since_s=self.clock.now_s(),
            quotes=(),
            clouds={"onprem": CloudChoice(name="onprem", options={})},
            origin=ORIGIN,
            hold_s=3600.0,
        )

    def capacity(self) -> RentedCapacity:
        """Return what a new process has."""
        return RentedCapacity(
            terms=self.terms,
            renter=self.renter(),
            survey=self.survey,
            wanted=self.wanted,
            memory=MemoryFile(self.store, RUN),
            hazards=HAZARDS,
            clock=self.clock,
        )

    def driver(self, **changes: object) -> RunDriver:
        renter = self.renter()
        return RunDriver(
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            journal=self.journal,
            engine=self.engine,
            planner=greedy_planner,
            checkpoints=self.checkpoints,
            open_channel=self.hub.open,
            clock=self.clock,
            rented=renter.spend,
            leases=renter.active,
            capacity=self.capacity(),
            copy=self.copy,
        )

    def copy(self, source: str, target: str) -> int:
        """Copy a checkpoint to another storage."""
        return self.checkpoints.copy(source, target)

    def keep(self) -> None:
        """Have the run's leases be renewed."""
        LeaseKeeper(open_cloud=self.cloud, clock=self.clock).keep([self.book()])

    def where(self) -> list[str]:
        """Return the zone that each attempt ran in."""
        zones = {node: name for name, zone in self.zones.items() for node in zone.nodes}
        return ["+".join(sorted({zones[node] for node in each.plan.placement.nodes})) for each in self.attempts()]

    def attempts(self) -> Any:
        return self.driver().attempts()

    def at(self, *events: tuple[float, Callable[[], None]]) -> Callable[[], None]:
        """Return a ``before_look`` that has things happen so many seconds after now, and leases be kept."""
        start_s, left = self.clock.now_s(), sorted(events, key=lambda each: each[0])

        def look() -> None:
            self.keep()
            while left and self.clock.now_s() >= start_s + left[0][0]:
                left.pop(0)[1]()

        return look
