"""What can be rented, where, for how much and how long. Money is US dollars; a price is one node's for one hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_llmsched.domain.workload import CapacityType, CapacityWish

DEFAULT_CORRELATION = 0.9
"""The median of six public records of several nodes in one pool, losses within ten minutes counted as one (2026-11-30).

From how many losses of a gang of N there were for the nodes that they took. Bamboo (Thorpe et al., NSDI 2023): 12
g4dn in two zones, November 2020, 0.86 and 0.91; its p3 nodes, some 20 to 25 of several zones, as Parcae (Duan et al.,
NSDI 2024) replays them, 0.90. SkyPilot (Wu et al., NSDI 2024), V100 of August 2023: 4 nodes, us-west-2c 0.93 and
us-east-2a 0.56; 16 nodes, us-west-2c 0.99. Nothing public says how gangs of hundreds fare.
"""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pool:
    """Capacity that comes and goes as one: nodes of one shape in one zone, rented in one way.

    ``zone`` is empty where a cloud prices and fills whole regions.
    """

    cloud: str
    region: str
    zone: str
    shape: str
    capacity_type: CapacityType

    @property
    def name(self) -> str:
        """Return the pool as one text, by which what is seen of it is kept."""
        return f"{self.cloud}/{self.region}/{self.zone}/{self.shape}/{self.capacity_type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """What a person has to buy before it can be rented: ``what`` it is, at ``usd`` at once, by ``command``."""

    what: str
    usd: float
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A pool's nodes at a price. Times are Unix seconds.

    ``num_nodes`` is how many there are for us, quota included, and ``loss_per_hour`` how often one node there is taken
    (a gang's is ``planner.market.gang_hazards.loss_ratio`` times as much); None: not known. ``starts_at_s`` and
    ``ends_at_s`` bound a reservation or a capacity block, None leaves that side open. ``start_up_s`` lasts from the
    order to the first rank. ``source`` says who named the price, and ``priced_at_s`` when. ``energy_usd_per_hour`` is
    what a node's electricity costs, whoever pays it, and ``carbon_g_per_hour`` the grams of CO2 equivalent that go with
    it; None: not known. With a ``purchase`` it is no capacity yet: it can be rented, as a reservation, once a person
    has bought it.
    """

    pool: Pool
    usd_per_hour: float
    priced_at_s: float
    source: str
    num_nodes: int | None = None
    loss_per_hour: float | None = None
    start_up_s: float = 300.0
    starts_at_s: float | None = None
    ends_at_s: float | None = None
    jurisdiction: str = ""
    vendor: str = ""
    energy_usd_per_hour: float | None = None
    carbon_g_per_hour: float | None = None
    purchase: Purchase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeNeed:
    """What the run takes on one node shape: so many nodes, for so long, as planned for that shape."""

    num_nodes: int
    work_s: float


COPY_BYTES_PER_S = 1e9
"""How fast data and checkpoints come over from another region, unless told otherwise: a guess, slow for a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAt:
    """Bytes that have to be where the nodes are. Leaving their region costs ``egress_usd_per_byte``."""

    cloud: str
    region: str
    num_bytes: int
    egress_usd_per_byte: float = 0.0
    bytes_per_s: float = COPY_BYTES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a run wants of the market. ``rework_s`` is what one interruption costs in time, all told.

    ``shared_loss_ratio`` is the share of a spot node's losses that take its whole pool with it, the ``correlation`` of
    ``planner.market.gang_hazards``.
    ``by_shape`` has the fewest nodes that do, ``more_nodes`` further counts of the same shape that compete with them.
    ``refused`` says why the run was planned for a node shape in vain.
    """

    by_shape: Mapping[str, ShapeNeed]
    wish: CapacityWish = field(default_factory=CapacityWish)
    data: tuple[DataAt, ...] = ()
    deadline_s: float | None = None
    rework_s: float = 0.0
    shared_loss_ratio: float = DEFAULT_CORRELATION
    more_nodes: Mapping[str, tuple[ShapeNeed, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def rounds(self) -> tuple[Mapping[str, ShapeNeed], ...]:
        """Return what the run takes by shape: first all fewest counts, then all second ones, and so on."""
        num_more = max((len(needs) for needs in self.more_nodes.values()), default=0)
        more = (
            {name: needs[at] for name, needs in self.more_nodes.items() if at < len(needs)} for at in range(num_more)
        )
        return (self.by_shape, *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What the whole run would cost with one offer, in money and time. Holds until ``valid_until_s`` (Unix seconds).

    ``expected_usd_per_hour`` is what a node's hour is expected to cost on average while it is held, where prices have a
    history; None: as much as now. ``energy_usd`` and ``carbon_g`` (grams of CO2 equivalent) are None where the offer
    does not tell, and no part of ``total_usd``. ``extra_usd`` is what both count for in comparisons,
    ``extra_usd_per_hour`` for a node's hour: nobody is paid it.
    """

    offer: Offer
    num_nodes: int
    compute_usd: float
    egress_usd: float
    stage_s: float
    finish_at_s: float
    valid_until_s: float
    energy_usd: float | None = None
    carbon_g: float | None = None
    extra_usd: float = 0.0
    extra_usd_per_hour: float = 0.0
    expected_usd_per_hour: float | None = None

    @property
    def usd_per_hour(self) -> float:
        """What a node's hour is taken to cost: decisions go by this, bills by the offer."""
        return self.offer.usd_per_hour if self.expected_usd_per_hour is None else self.expected_usd_per_hour

    @property
    def budget_usd_per_hour(self) -> float:
        """What a node's hour must be paid for: a sum that is good for an expected fall alone ends before it comes."""
        return max(self.offer.usd_per_hour, self.usd_per_hour)

    @property
    def total_usd(self) -> float:
        """Everything that is paid for the run."""
        return self.compute_usd + self.egress_usd

    @property
    def weighed_usd(self) -> float:
        """What it counts for beside other quotes."""
        return self.total_usd + self.extra_usd
