"""Ranks what the market offers by what the whole run would cost there. Pure.

Wishes about cloud, region, jurisdiction, vendor and capacity type are filters, never costs: no price buys its way past
one. What is left is priced to the end: nodes times hours at that offer's own price (of spot capacity the one that is
expected, ``expected_prices``), the time that interruptions of so many nodes together are expected to cost
(``gang_hazards``), and what it costs to bring the data there. What a run's electricity and carbon are worth on top is
for :class:`Weights` to say; they weigh nothing unless told to.

What does not depend on the run is worked out once, in :meth:`OfferTable.of`. Axes: M = offer, P = place, R = round
of node counts (``Requirement.rounds``), Q = quote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_llmsched.domain.capacity import Offer, Quote, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices
from airflow_llmsched.planner.market.gang_hazards import loss_ratio
from airflow_llmsched.planner.market.price_rows import explained
from airflow_llmsched.units import HOUR_S

QUOTE_LIFE_S = HOUR_S
"""How long after it was named a price is relied on."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """One text column, as codes into its distinct values."""

    values: tuple[str, ...]
    code_M: IntArray

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """Number the distinct texts."""
        values, codes = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
        return cls(tuple(values.tolist()), codes.astype(np.int64))

    def among(self, wanted: Collection[str]) -> BoolArray:
        """Return which rows hold one of ``wanted``."""
        return self.mapped(dict.fromkeys(wanted, True), default=False).astype(np.bool_)

    def mapped(self, table: Mapping[str, float], *, default: float) -> FloatArray:
        """Return each row's number in ``table``."""
        return np.array([float(table.get(value, default)) for value in self.values])[self.code_M]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Dollars that a dollar of electricity (on top of the price) and a gram of CO2 equivalent count for in the order.

    With a weight above 0, an offer that does not tell its figure is left out: an unknown must not look clean.
    """

    usd_per_energy_usd: float = 0.0
    usd_per_carbon_g: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for a negative weight, which would reward waste."""
        for name in ("usd_per_energy_usd", "usd_per_carbon_g"):
            if not getattr(self, name) >= 0:
                raise SpecError(path=name, value=getattr(self, name), hint="must be 0 or more")

    def extra_usd_per_hour(self, offer: Offer) -> float:
        """Return what a node's hour counts for beside its price. What an offer does not tell counts for nothing."""
        energy_usd = self.usd_per_energy_usd * (offer.energy_usd_per_hour or 0.0)
        return energy_usd + self.usd_per_carbon_g * (offer.carbon_g_per_hour or 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class OfferTable:
    """Offers in columns, in the order of their pools. Build by :meth:`of`; reading it costs no loop over offers."""

    offers: tuple[Offer, ...]
    cloud: Words
    region: Words
    shape: Words
    capacity_type: Words
    jurisdiction: Words
    vendor: Words
    usd_per_hour_M: FloatArray
    num_nodes_M: FloatArray
    loss_per_hour_M: FloatArray
    start_up_s_M: FloatArray
    starts_at_s_M: FloatArray
    ends_at_s_M: FloatArray
    energy_usd_per_hour_M: FloatArray
    carbon_g_per_hour_M: FloatArray
    place_M: IntArray
    """Which cloud, region and shape together, as a code."""
    spot_rows: Mapping[str, tuple[int, ...]]
    """The rows of each pool of spot capacity, by ``Pool.name``."""

    @classmethod
    def of(cls, offers: Sequence[Offer]) -> OfferTable:
        """Put offers in columns. Those of one pool stay in the order given."""
        ordered = tuple(sorted(offers, key=lambda each: each.pool))

        def numbers(read: Callable[[Offer], float | None], *, default: float) -> FloatArray:
            return np.array([default if (value := read(each)) is None else value for each in ordered], dtype=np.float64)

        cloud = Words.of([each.pool.cloud for each in ordered])
        region = Words.of([each.pool.region for each in ordered])
        shape = Words.of([each.pool.shape for each in ordered])
        capacity_type = Words.of([each.pool.capacity_type for each in ordered])
        usd_per_hour_M = numbers(lambda each: each.usd_per_hour, default=np.nan)
        return cls(
            offers=ordered,
            cloud=cloud,
            region=region,
            shape=shape,
            capacity_type=capacity_type,
            jurisdiction=Words.of([each.jurisdiction for each in ordered]),
            vendor=Words.of([each.vendor for each in ordered]),
            usd_per_hour_M=usd_per_hour_M,
            num_nodes_M=numbers(lambda each: each.num_nodes, default=np.inf),
            loss_per_hour_M=numbers(lambda each: each.loss_per_hour, default=0.0),
            start_up_s_M=numbers(lambda each: each.start_up_s, default=0.0),
            starts_at_s_M=numbers(lambda each: each.starts_at_s, default=-np.inf),
            ends_at_s_M=numbers(lambda each: each.ends_at_s, default=np.inf),
            energy_usd_per_hour_M=numbers(lambda each: each.energy_usd_per_hour, default=np.nan),
            carbon_g_per_hour_M=numbers(lambda each: each.carbon_g_per_hour, default=np.nan),
            place_M=_joint(cloud, region, shape),
            spot_rows=_spot_rows(ordered),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Quotes, cheapest first as weighed, and how many offers fell out for which reason (the first that applied)."""

    quotes: tuple[Quote, ...]
    rejections: Mapping[str, int]

    def explain(self) -> str:
        """Return the reasons in words, the most frequent first."""
        return explained(self.rejections)


NO_WEIGHTS = Weights()
NO_HISTORY = ExpectedPrices(now_s=0.0)


def rank(
    table: OfferTable,
    need: Requirement,
    *,
    now_s: float,
    limit: int = 20,
    weights: Weights = NO_WEIGHTS,
    prices: ExpectedPrices = NO_HISTORY,
) -> Ranking:
    """Return the ``limit`` cheapest quotes, at the ``prices`` expected.

    Ties go to the pool that comes first by name, so that none is by chance.

    Where several node counts of a shape compete, an offer has a quote for each that it can serve. It counts as fallen
    out if it serves none, for what keeps it from the fewest nodes.
    """
    rounds = [_Costs(table, need, by_shape, now_s=now_s, weights=weights, prices=prices) for by_shape in need.rounds]
    fits_RM = np.ones((len(rounds), len(table.offers)), dtype=np.bool_)
    first_out = []
    for number, costs in enumerate(rounds):
        for reason, ok_M in costs.checks():
            if number == 0:
                first_out.append((reason, fits_RM[0] & ~ok_M))
            fits_RM[number] &= ok_M
    serves_M = fits_RM.any(axis=0)
    rejections = {reason: num for reason, out_M in first_out if (num := int((out_M & ~serves_M).sum()))}
    round_Q, row_Q = np.nonzero(fits_RM)
    weighed_usd_Q = np.stack([costs.weighed_usd_M for costs in rounds])[round_Q, row_Q]
    cheapest = np.argsort(weighed_usd_Q, kind="stable")[:limit]
    quotes = tuple(rounds[round_Q[at]].quote(int(row_Q[at])) for at in cheapest)
    return Ranking(quotes=quotes, rejections=rejections)


class _Costs:
    """Every offer's cost to the end, as arrays."""

    def __init__(
        self,
        table: OfferTable,
        need: Requirement,
        by_shape: Mapping[str, ShapeNeed],
        *,
        now_s: float,
        weights: Weights,
        prices: ExpectedPrices,
    ) -> None:
        self._table, self._need, self._now_s, self._weights = table, need, now_s, weights
        self.num_nodes_M = table.shape.mapped({name: each.num_nodes for name, each in by_shape.items()}, default=0)
        work_s_M = table.shape.mapped({name: each.work_s for name, each in by_shape.items()}, default=0.0)
        self.stage_s_M, self.egress_usd_M = self._data()
        self.expected_usd_per_hour = _expected(table, prices, work_s_M)
        # One interruption every 1 / loss hours, each costing rework_s: first order, as long as they are far between.
        gang_loss_per_hour_M = table.loss_per_hour_M * loss_ratio(
            np.maximum(1.0, self.num_nodes_M), correlation=need.shared_loss_ratio
        )
        busy_s_M = work_s_M * (1 + gang_loss_per_hour_M / HOUR_S * need.rework_s)
        self.held_s_M = table.start_up_s_M + self.stage_s_M + busy_s_M
        self.finish_at_s_M = np.maximum(now_s, table.starts_at_s_M) + self.held_s_M
        self.node_hours_M = self.num_nodes_M * self.held_s_M / HOUR_S
        usd_per_hour_M = table.usd_per_hour_M.copy()
        usd_per_hour_M[list(self.expected_usd_per_hour)] = list(self.expected_usd_per_hour.values())
        self.compute_usd_M = self.node_hours_M * usd_per_hour_M
        self.weighed_usd_M = self.compute_usd_M + self.egress_usd_M
        if weights.usd_per_energy_usd:
            self.weighed_usd_M += weights.usd_per_energy_usd * self.node_hours_M * table.energy_usd_per_hour_M
        if weights.usd_per_carbon_g:
            self.weighed_usd_M += weights.usd_per_carbon_g * self.node_hours_M * table.carbon_g_per_hour_M

    def checks(self) -> list[tuple[str, BoolArray]]:
        """Return what must hold of an offer, with how to say that it does not."""
        table, wish, weights = self._table, self._need.wish, self._weights
        deadline_s = np.inf if self._need.deadline_s is None else self._need.deadline_s
        everything = np.ones(len(table.offers), dtype=np.bool_)

        def allowed(column: Words, wanted: Sequence[str]) -> BoolArray:
            return column.among(wanted) if wanted else everything

        def told(figure_M: FloatArray, weight: float) -> BoolArray:
            return np.isfinite(figure_M) if weight else everything

        return [
            ("of a node shape the run was not planned for", self.num_nodes_M > 0),
            ("of another cloud", allowed(table.cloud, wish.clouds)),
            ("in another region", allowed(table.region, wish.regions)),
            ("under another jurisdiction", allowed(table.jurisdiction, wish.jurisdictions)),
            ("of another vendor", allowed(table.vendor, wish.vendors)),
            ("of another capacity type", allowed(table.capacity_type, wish.capacity_types)),
            ("without a price", np.isfinite(table.usd_per_hour_M)),
            ("of spot capacity that costs no less than on-demand there", ~_pointless_spot_M(table, self.num_nodes_M)),
            ("whose electricity is not known", told(table.energy_usd_per_hour_M, weights.usd_per_energy_usd)),
            ("whose carbon is not known", told(table.carbon_g_per_hour_M, weights.usd_per_carbon_g)),
            ("with too few nodes", table.num_nodes_M >= self.num_nodes_M),
            ("that end before the run does", self.finish_at_s_M <= table.ends_at_s_M),
            ("too late for the deadline", self.finish_at_s_M <= deadline_s),
        ]

    def quote(self, row: int) -> Quote:
        offer = self._table.offers[row]
        ends_at_s = np.inf if offer.ends_at_s is None else offer.ends_at_s
        node_hours = float(self.node_hours_M[row])
        energy, carbon = offer.energy_usd_per_hour, offer.carbon_g_per_hour
        return Quote(
            offer=offer,
            num_nodes=int(self.num_nodes_M[row]),
            compute_usd=float(self.compute_usd_M[row]),
            egress_usd=float(self.egress_usd_M[row]),
            stage_s=float(self.stage_s_M[row]),
            finish_at_s=float(self.finish_at_s_M[row]),
            valid_until_s=float(min(offer.priced_at_s + QUOTE_LIFE_S, ends_at_s)),
            energy_usd=None if energy is None else node_hours * energy,
            carbon_g=None if carbon is None else node_hours * carbon,
            extra_usd=float(self.weighed_usd_M[row] - self.compute_usd_M[row] - self.egress_usd_M[row]),
            extra_usd_per_hour=self._weights.extra_usd_per_hour(offer),
            expected_usd_per_hour=self.expected_usd_per_hour.get(row),
        )

    def _data(self) -> tuple[FloatArray, FloatArray]:
        """Return seconds of staging and dollars of egress: what is in another region has to come over."""
        table = self._table
        stage_s_M, egress_usd_M = np.zeros(len(table.offers)), np.zeros(len(table.offers))
        for data in self._need.data:
            away_M = ~(table.cloud.among({data.cloud}) & table.region.among({data.region}))
            stage_s_M += away_M * (data.num_bytes / data.bytes_per_s)
            egress_usd_M += away_M * (data.num_bytes * data.egress_usd_per_byte)
        return stage_s_M, egress_usd_M


def _expected(table: OfferTable, prices: ExpectedPrices, work_s_M: FloatArray) -> dict[int, float]:
    """Return by row what a node's hour is expected to cost, where that is not its price."""
    rows = [row for name in prices.known for row in table.spot_rows.get(name, ()) if work_s_M[row] > 0]
    told = ((row, prices.usd_per_hour(table.offers[row], work_s=float(work_s_M[row]))) for row in rows)
    return {row: usd_per_hour for row, usd_per_hour in told if usd_per_hour is not None}


def _spot_rows(offers: Sequence[Offer]) -> dict[str, tuple[int, ...]]:
    rows: dict[str, tuple[int, ...]] = {}
    for row, offer in enumerate(offers):
        if offer.pool.capacity_type is CapacityType.SPOT:
            rows[offer.pool.name] = (*rows.get(offer.pool.name, ()), row)
    return rows


def _pointless_spot_M(table: OfferTable, num_nodes_M: FloatArray) -> BoolArray:
    """Return spot rows whose price is not below the cheapest on-demand price of that shape, region and cloud.

    It is the price of the moment: whatever is expected, nobody pays more now for what can be taken away. On-demand
    capacity that has too few nodes, or no quota, is nothing to take instead.
    """
    place_M, usd_per_hour_M = table.place_M, table.usd_per_hour_M
    is_spot_M = table.capacity_type.among({CapacityType.SPOT})
    is_demand_M = table.capacity_type.among({CapacityType.ON_DEMAND}) & np.isfinite(usd_per_hour_M)
    is_demand_M &= table.num_nodes_M >= num_nodes_M
    demand_P = np.full(int(place_M.max(initial=-1)) + 1, np.inf)
    np.minimum.at(demand_P, place_M[is_demand_M], usd_per_hour_M[is_demand_M])
    return np.asarray(is_spot_M & (usd_per_hour_M >= demand_P[place_M]))


def _joint(*columns: Words) -> npt.NDArray[np.int64]:
    """Return one code for each combination of values."""
    joint_M = np.zeros_like(columns[0].code_M)
    for column in columns:
        joint_M = joint_M * len(column.values) + column.code_M
    return np.asarray(np.unique(joint_M, return_inverse=True)[1], dtype=np.int64)
