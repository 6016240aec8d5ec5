from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.capacity import Offer, Pool, Quote, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.mixed_ways import is_made_of, with_mixes
from airflow_llmsched.planner.market.rental_ways import Stock, Way, hazards_of, mode_set, spot_stocks, ways_of
from tests.support.pools import model_of

HOUR_S = 3600.0
WORK_S = {2: 20 * HOUR_S, 3: 14 * HOUR_S, 4: 11 * HOUR_S}
NEED = Requirement(
    by_shape={"p5": ShapeNeed(num_nodes=2, work_s=WORK_S[2])},
    more_nodes={"p5": tuple(ShapeNeed(num_nodes=count, work_s=WORK_S[count]) for count in (3, 4))},
)


def quotes_of(
    *counts: int, zone: str = "a", usd: float = 10.0, capacity_type: CapacityType = CapacityType.ON_DEMAND
) -> list[Quote]:
    pool = Pool(cloud="sim", region="east", zone=zone, shape="p5", capacity_type=capacity_type)
    return [
        Quote(
            offer=Offer(pool=pool, usd_per_hour=usd, priced_at_s=0.0, source="test"),
            num_nodes=count,
            compute_usd=count * usd * WORK_S[count] / HOUR_S,
            egress_usd=0.0,
            stage_s=0.0,
            finish_at_s=WORK_S[count],
            valid_until_s=HOUR_S,
        )
        for count in counts
    ]


def spots_of(*counts: int, **changes: object) -> list[Quote]:
    return quotes_of(*counts, **{"capacity_type": CapacityType.SPOT, "usd": 3.0, **changes})  # type: ignore[arg-type]


def mix_of(*quotes: Quote, held: tuple[Stock, ...] = ()) -> tuple[Way, ...]:
    ways = ways_of(quotes, NEED)
    return tuple(way for way in with_mixes(ways, quotes, NEED, held=held) if way.base is not None)


def test_a_mix_keeps_a_smaller_size_on_demand_and_adds_the_rest_as_spot() -> None:
    (mix,) = mix_of(*quotes_of(2, 4), *spots_of(2, 4))
    assert mix.base is not None
    assert (mix.base.demand[0].num_nodes, mix.spot[0].num_nodes, mix.demand[0].num_nodes) == (2, 2, 2)
    assert mix.work_s == WORK_S[4]
    assert (mix.base_usd_per_hour, mix.spot_usd_per_hour, mix.demand_usd_per_hour) == (20.0, 26.0, 40.0)
    assert mix.describe() == "2 kept on demand + 2 nodes of p5 in sim east"


def test_a_mix_fears_for_the_nodes_that_it_adds_and_for_no_others() -> None:
    (mix,) = mix_of(*quotes_of(3, 4), *spots_of(3, 4))
    assert (mix.base_usd_per_hour, mix.spot[0].num_nodes) == (30.0, 1)
    alone = model_of(loss_per_hour=0.5, return_per_hour=1.0)
    assert hazards_of([mix], alone, correlation=0.5) == (alone,)
    (pair,) = hazards_of(mix_of(*quotes_of(2, 4), *spots_of(2, 4)), alone, correlation=0.5)
    assert pair.num_nodes == 2
    assert pair.loss_per_s_KF == pytest.approx(1.5 * alone.loss_per_s_KF)


def test_of_several_mixes_the_cheapest_to_the_end_is_weighed_and_the_one_that_is_held() -> None:
    quotes = [*quotes_of(2, 3, 4), *spots_of(2, 3, 4)]
    (cheapest,) = mix_of(*quotes)
    assert cheapest.spot_usd_per_hour * cheapest.work_s == pytest.approx(26.0 * WORK_S[4])
    held = (Stock.of(quotes[1]), replace(Stock.of(quotes[4]), num_nodes=1))
    assert [mix.base.demand[0].num_nodes for mix in mix_of(*quotes, held=held) if mix.base] == [2, 3]


def test_a_gang_is_not_mixed_over_zones_nor_without_on_demand_capacity_for_all_of_it() -> None:
    assert mix_of(*quotes_of(2, 4), *spots_of(2, 4, zone="b")) == ()
    assert mix_of(*quotes_of(2), *spots_of(2, 4)) == ()
    assert mix_of(*quotes_of(2, 4)) == ()


def test_what_is_held_is_of_a_mix_if_both_parts_are() -> None:
    quotes = [*quotes_of(2, 4), *spots_of(2, 4)]
    (mix,) = mix_of(*quotes)
    kept, added = Stock.of(quotes[0]), Stock.of(quotes[2])
    assert is_made_of(mix, (kept, added))
    assert is_made_of(mix, (kept, kept))
    assert not is_made_of(mix, (added, kept))
    assert not is_made_of(mix, (kept,))
    assert not is_made_of(ways_of(quotes, NEED)[0], (kept, added))


def test_the_mode_of_a_mix_works_on_while_nothing_is_added_and_pays_for_what_it_keeps() -> None:
    quotes = [*quotes_of(2, 4), *spots_of(2, 4)]
    ways = with_mixes(ways_of(quotes, NEED), quotes, NEED)
    modes = mode_set(ways, time_s=30 * HOUR_S, work_ratio=1.0, changeover_s=600.0).modes
    first, mixed = ways[0], modes[-1].terms
    assert mixed.base_ratio == pytest.approx(20.0 / first.demand_usd_per_hour)
    assert mixed.base_speed_ratio == pytest.approx(first.work_s / WORK_S[2])
    assert mixed.spot_ratio == pytest.approx(26.0 / first.demand_usd_per_hour)
    assert mixed.spot_speed_ratio == pytest.approx(first.work_s / WORK_S[4])
    assert modes[-1].pools == (len(spot_stocks(ways)) - 1,)
