from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner.export import volcano
from airflow_llmsched.planner.export.gaps import found_gaps
from tests.support.spans import span
from tests.support.tool_options import planned


def run(*, soft: bool = False, **reached: str):
    found = planned(ParallelLayout(dp=8, tp=16, ep=4, expert_tp=16))
    wish = PlacementWish(group=RankGroup.GANG, level="zone", required=not soft)
    spans = tuple(span(RankGroup(group), level=level) for group, level in reached.items())
    workload = replace(found.workload, placement=(wish,))
    return replace(found, workload=workload, spans=spans, levels=("zone", "block", "rack"))


def test_cells_are_partitions_of_the_task_all_of_which_must_start() -> None:
    spec = json.loads(volcano.render(run(tp="rack")))["spec"]
    assert spec["networkTopology"] == {"mode": "hard", "highestTierName": "zone"}
    assert spec["minAvailable"] == 16
    assert spec["tasks"][0]["partitionPolicy"] == {
        "totalPartitions": 8,
        "partitionSize": 2,
        "minPartitions": 8,
        "networkTopology": {"mode": "hard", "highestTierName": "rack"},
    }


def test_a_preferred_level_is_soft() -> None:
    spec = volcano.job(run(soft=True))["spec"]
    assert spec["networkTopology"] == {"mode": "soft", "highestTierName": "zone"}
    assert "partitionPolicy" not in spec["tasks"][0]


def test_two_sizes_of_cells_are_more_than_a_task_can_say() -> None:
    ((gap, value),) = found_gaps(volcano.GAPS, run(tp="rack", ep="block"))
    assert value == "8 pods in a block; 2 pods in a rack"
    assert "one size of partitions" in gap.why


def test_the_reader_is_told_of_tier_names() -> None:
    assert any("must have the tierName zone and rack." in note for note in volcano.notes(run(tp="rack")))


def test_tiers_that_have_only_numbers_are_told_by_them() -> None:
    numbered = run(tp="tier1")
    wish = PlacementWish(group=RankGroup.GANG, level="tier3", required=True)
    numbered = replace(
        numbered, levels=("tier3", "tier2", "tier1"), workload=replace(numbered.workload, placement=(wish,))
    )
    spec = volcano.job(numbered)["spec"]
    assert spec["networkTopology"] == {"mode": "hard", "highestTierAllowed": 3}
    assert spec["tasks"][0]["partitionPolicy"]["networkTopology"] == {"mode": "hard", "highestTierAllowed": 1}
    assert not any("tierName" in note for note in volcano.notes(numbered))


@pytest.mark.parametrize("level", ["cloud.google.com/gce-topology-block", "Rack", "-rack", "a" * 254])
def test_a_level_that_no_tier_can_be_called_is_an_error(level: str) -> None:
    found = replace(run(tp=level), levels=("zone", level))
    ((gap, value),) = found_gaps(volcano.GAPS, found)
    assert value == level
    assert "HyperNodes" in gap.why
