"""``make bench-market``: what our rental policy and forecast are worth against their baselines, on recorded traces.

Needs the reference traces in ``../shared/data/spot_traces``. Hazards are fitted on other traces than the one that is
replayed; with several zones, on other sets. Writes ``bench/results/market.json``; exits 1 naming what was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from airflow_llmsched.domain.capacity import DataAt, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market import forecast, offline
from airflow_llmsched.planner.market.baselines import GreedySpot, OnDemandOnly, UniformProgress
from airflow_llmsched.planner.market.forecast import AvailabilityTrace, HazardModel
from airflow_llmsched.planner.market.modes import Mode, ModeSet, Move
from airflow_llmsched.planner.market.offers import OfferTable, rank
from airflow_llmsched.planner.market.rental import RentalPolicy
from airflow_llmsched.planner.market.replay import replay
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.stock import StockModel
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.units import GB, HOUR_S, TB
from tests.bench.leases import measured_leases
from tests.bench.rows import RESULTS, Row, conclude
from tests.support.market import NOW_S, many_offers
from tests.support.pools import stock_drawn
from tests.support.spot_traces import TRACES, SpotTrace, spot_traces

TERMS = SpotTerms(time_s=60 * HOUR_S, work_s=48 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
FORECAST_S = HOUR_S
PROMISED_MISS = 0.01
REGIONS_OF = "aws-02-15-2023"
NUM_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class Costs:
    """Mean cost of each policy in hours of on-demand capacity, over the same starts; the optimum on some of them."""

    hours: Mapping[str, float]
    num_late: Mapping[str, int]
    num_starts: int


def starts_of(trace: SpotTrace, *, num_starts: int, rng: np.random.Generator) -> IntArray:
    num_ticks = int(np.ceil(TERMS.time_s / trace.tick_s))
    return rng.integers(0, len(trace.up) - num_ticks, size=num_starts)


def compared(zones: Sequence[SpotTrace], model: HazardModel, starts_N: IntArray, *, num_optima: int) -> Costs:
    up_ZT = np.stack([zone.up for zone in zones])
    policies: dict[str, RentalPolicy] = {
        "on-demand only": OnDemandOnly(),
        "greedy spot": GreedySpot(),
        "uniform progress": UniformProgress(),
        "ours": SpotPolicy(model),
    }
    tick_s = zones[0].tick_s
    done = {
        name: replay(up_ZT, tick_s=tick_s, starts_N=starts_N, terms=TERMS, policy=policy)
        for name, policy in policies.items()
    }
    hours = {name: float(each.cost_s_N[:num_optima].mean()) / HOUR_S for name, each in done.items()}
    optima_s = [
        offline.optimum_s(up_ZT, tick_s=tick_s, start=int(start), terms=TERMS) for start in starts_N[:num_optima]
    ]
    hours["optimum"] = float(np.mean(optima_s)) / HOUR_S
    return Costs(hours, {name: int((~each.in_time_N).sum()) for name, each in done.items()}, len(starts_N))


def others(traces: Sequence[SpotTrace], left_out: Sequence[SpotTrace], *, timed_set: str | None = None) -> HazardModel:
    return forecast.fit(
        [
            AvailabilityTrace(each.tick_s, each.up, 0.0 if each.folder == timed_set else None)
            for each in traces
            if each not in left_out
        ]
    )


def measured_policy(traces: Sequence[SpotTrace], *, num_starts: int, num_optima: int, seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    single, zoned, alone = [], [], []
    for trace in traces:
        starts_N = starts_of(trace, num_starts=num_starts, rng=rng)
        single.append(compared([trace], others(traces, [trace]), starts_N, num_optima=num_optima))
    for zones in sets_of(traces):
        starts_N = starts_of(zones[0], num_starts=num_starts, rng=rng)
        zoned.append(compared(zones, others(traces, zones), starts_N, num_optima=num_optima))
        greedy = [
            replay(zone.up[None], tick_s=zone.tick_s, starts_N=starts_N, terms=TERMS, policy=GreedySpot())
            for zone in zones
        ]
        alone.append(float(np.mean([each.cost_s_N[:num_optima].mean() for each in greedy])) / HOUR_S)
    late = sum(each.num_late["ours"] for each in (*single, *zoned))
    num_replays = sum(each.num_starts for each in (*single, *zoned))
    return [
        share_row("gap closed in one pool", single, above=0.35),
        share_row("gap closed among the zones of a set, from greedy in one of them", zoned, above=0.60, greedy=alone),
        share_row("gap closed among the zones of a set, from greedy in all of them", zoned),
        cost_row("cost in one pool, hours", single),
        cost_row("cost among zones, hours", zoned),
        Row(name=f"missed deadlines of {num_replays} feasible ones", value=late, below=1),
    ]


def measured_stock(traces: Sequence[SpotTrace], *, num_starts: int, seed: int) -> Row:
    """Replay each trace with on-demand capacity out of stock a fifth of the time, promising one miss in a hundred."""
    scarce = StockModel(out_per_hour=0.1, back_per_hour=0.4)
    rng = np.random.default_rng(seed)
    late = []
    for number, trace in enumerate(traces):
        done = replay(
            trace.up[None],
            tick_s=trace.tick_s,
            starts_N=starts_of(trace, num_starts=num_starts, rng=rng),
            terms=TERMS,
            policy=SpotPolicy(others(traces, [trace]), stock=scarce, max_miss_ratio=PROMISED_MISS),
            in_stock_T=stock_drawn(scarce, num_ticks=len(trace.up), seed=seed + number, tick_s=trace.tick_s),
        )
        late.append(float(1 - done.in_time_N.mean()))
    return Row(name="late with stock-outs, where 0.01 is stated", value=float(np.mean(late)), below=PROMISED_MISS)


def measured_regions(traces: Sequence[SpotTrace], *, num_starts: int, seed: int) -> Row:
    """Replay the zones of 2023 as three regions: 0.5 h and an hour's worth of egress lie between any two."""
    zones = [trace for trace in traces if trace.folder == REGIONS_OF]
    names = sorted({zone.zone[:-1] for zone in zones})
    pools = {name: tuple(at for at, zone in enumerate(zones) if zone.zone.startswith(name)) for name in names}
    between = Move(duration_s=0.5 * HOUR_S, cost_s=HOUR_S)
    modes = ModeSet(
        modes=tuple(Mode(name=name, terms=TERMS, pools=pools[name]) for name in names),
        moves={(one, other): between for one in range(len(names)) for other in range(len(names)) if one != other},
    )
    model, up_ZT = others(traces, zones), np.stack([zone.up for zone in zones])
    starts_N = starts_of(zones[0], num_starts=num_starts, rng=np.random.default_rng(seed))

    def hours(policy: SpotPolicy, up_ZT: BoolArray, modes: ModeSet | None) -> float:
        done = replay(up_ZT, tick_s=zones[0].tick_s, starts_N=starts_N, terms=TERMS, policy=policy, modes=modes)
        return float(done.cost_s_N.mean()) / HOUR_S if done.in_time_N.all() else float("inf")

    alone = {f"in {name} only": hours(SpotPolicy(model), up_ZT[list(pools[name])], None) for name in names}
    moving = hours(SpotPolicy(model, modes=modes), up_ZT, modes)
    return Row(
        name="cost where another region may be moved to, hours",
        value=moving,
        below=alone[f"in {names[0]} only"],
        reference=alone,
    )


def sets_of(traces: Sequence[SpotTrace]) -> list[list[SpotTrace]]:
    """Zones that were watched at the same time for the same machine."""
    sets: dict[tuple[str, str], list[SpotTrace]] = {}
    for trace in traces:
        sets.setdefault((trace.folder, trace.kind), []).append(trace)
    return list(sets.values())


def share_row(name: str, costs: Sequence[Costs], *, above: float | None = None, greedy: Sequence[float] = ()) -> Row:
    greedy = greedy or [each.hours["greedy spot"] for each in costs]
    gap = sum(greedy) - sum(each.hours["optimum"] for each in costs)

    def share(policy: str) -> float:
        return (sum(greedy) - sum(each.hours[policy] for each in costs)) / gap

    return Row(name=name, value=share("ours"), above=above, reference={"uniform progress": share("uniform progress")})


def cost_row(name: str, costs: Sequence[Costs]) -> Row:
    means = {policy: float(np.mean([each.hours[policy] for each in costs])) for policy in costs[0].hours}
    ours = means.pop("ours")
    return Row(name=name, value=ours, below=means["uniform progress"], reference=means)


def measured_forecast(traces: Sequence[SpotTrace], *, by_hour: bool = False) -> list[Row]:
    """Score "capacity that is up is lost within the hour" in every tick of every trace, fitted on the others.

    The traces do not tell when they were taken, but those of one set began together: ``by_hour`` has each trace's hours
    of the day foretold by the other zones of its set, counted from the set's first tick.
    """
    ours, constant, last, truth = [], [], [], []
    for trace in traces:
        model = others(traces, [trace], timed_set=trace.folder if by_hour else None)
        rest = [each for each in traces if each is not trace]
        lost_per_s = sum(each.num_losses for each in rest) / sum(each.up.sum() * each.tick_s for each in rest)
        window = round(FORECAST_S / trace.tick_s)
        down_T = np.concatenate([[0], np.cumsum(~trace.up)])
        belief = forecast.first_belief(model, trace.up[:1])
        for tick in range(1, len(trace.up) - window):
            at_s_N = np.array([tick * trace.tick_s])
            belief = forecast.observe(model, belief, trace.up[tick : tick + 1], after_s=trace.tick_s, at_s_N=at_s_N)
            if not trace.up[tick] or tick < window:
                continue
            ours.append(
                float(forecast.change_probability(model, belief, within_s=window * trace.tick_s, at_s_N=at_s_N)[0])
            )
            constant.append(-np.expm1(-lost_per_s * window * trace.tick_s))
            last.append(float(down_T[tick + 1] > down_T[tick + 1 - window]))
            truth.append(float(down_T[tick + 1 + window] > down_T[tick + 1]))
    scores = {"constant rate": np.array(constant), "last value": np.array(last)}
    happened = np.array(truth)
    if by_hour:
        return [scored("the same with hours of the day", np.array(ours), scores, happened, brier)]
    return [
        scored("Brier score of a loss within the hour", np.array(ours), scores, happened, brier),
        scored(
            "calibration error of it", np.array(ours), {"last value": scores["last value"]}, happened, miscalibration
        ),
    ]


def scored(
    name: str,
    ours: FloatArray,
    others_: Mapping[str, FloatArray],
    happened: FloatArray,
    score: Callable[[FloatArray, FloatArray], float],
) -> Row:
    reference = {each: score(forecast_, happened) for each, forecast_ in others_.items()}
    return Row(name=name, value=score(ours, happened), below=min(reference.values()), reference=reference)


def brier(forecast_: FloatArray, happened: FloatArray) -> float:
    """Brier (1950): mean squared difference between the probability and what happened."""
    return float(np.mean((forecast_ - happened) ** 2))


def miscalibration(forecast_: FloatArray, happened: FloatArray) -> float:
    """Mean distance between forecast and frequency over ten bins of forecasts, weighted by their size."""
    bins = np.minimum((forecast_ * 10).astype(int), 9)
    size = np.bincount(bins, minlength=10)
    distance = np.abs(np.bincount(bins, forecast_, 10) - np.bincount(bins, happened, 10))
    return float(distance.sum() / size.sum())


def measured_ranking(seed: int) -> Row:
    table = OfferTable.of(many_offers(NUM_ROWS, seed=seed))
    need = Requirement(
        by_shape={f"shape-{number}": ShapeNeed(num_nodes=2, work_s=HOUR_S * (1 + number)) for number in range(30)},
        wish=CapacityWish(clouds=("aws", "gcp")),
        data=(DataAt(cloud="aws", region="region-3", num_bytes=TB, egress_usd_per_byte=0.02 / GB),),
        rework_s=600.0,
    )
    times_s = []
    for _ in range(9):
        start_s = time.perf_counter()
        rank(table, need, now_s=NOW_S)
        times_s.append(time.perf_counter() - start_s)
    return Row(name=f"ranking {NUM_ROWS} offers, ms", value=1e3 * float(np.median(times_s)), below=50.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=600, help="replays for each trace and each set of zones")
    parser.add_argument("--optima", type=int, default=100, help="of these, how many are compared with the optimum")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=2000, help="runs that rent and die, over all clouds")
    parser.add_argument("--output", type=Path, default=RESULTS / "market.json")
    arguments = parser.parse_args()
    if not TRACES.exists():
        sys.stderr.write(f"no reference traces at {TRACES}: this bench replays them\n")
        return 2
    traces = spot_traces()
    rows = measured_policy(
        traces, num_starts=arguments.starts, num_optima=min(arguments.optima, arguments.starts), seed=arguments.seed
    )
    rows.append(measured_regions(traces, num_starts=arguments.starts, seed=arguments.seed))
    rows.append(measured_stock(traces, num_starts=arguments.starts, seed=arguments.seed))
    rows += [*measured_forecast(traces), *measured_forecast(traces, by_hour=True), measured_ranking(arguments.seed)]
    rows += measured_leases(num_runs=arguments.runs, seed=arguments.seed)
    about = {"seed": arguments.seed, "starts": arguments.starts, "optima": arguments.optima, "runs": arguments.runs}
    return conclude(rows, title=f"market, {arguments.starts} starts a trace", output=arguments.output, about=about)


if __name__ == "__main__":
    sys.exit(main())
