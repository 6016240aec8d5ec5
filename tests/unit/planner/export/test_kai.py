from __future__ import annotations

from dataclasses import replace

import yaml

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner.export import kai
from airflow_llmsched.planner.export.cells import Cell, Cells
from airflow_llmsched.planner.export.gaps import found_gaps
from tests.support.spans import span
from tests.support.tool_options import planned


def test_a_cell_is_a_segment_and_the_gang_has_a_level_of_its_own() -> None:
    cells = Cells(num_pods=64, ranks_per_pod=8, whole="zone", inner=(Cell(level="rack", num_pods=4),))
    assert kai.workload_annotations(cells) == {"kai.scheduler/topology-required-placement": "zone"}
    assert kai.pod_annotations(cells) == {
        "kai.scheduler/segment-size": "4",
        "kai.scheduler/segment-topology-required-placement": "rack",
    }


def test_a_preference_is_told_as_one() -> None:
    cells = Cells(num_pods=64, ranks_per_pod=8, preferred="zone")
    assert kai.workload_annotations(cells) == {"kai.scheduler/topology-preferred-placement": "zone"}


def test_nothing_to_say_is_said() -> None:
    run = planned(ParallelLayout(dp=8))
    assert kai.render(run).startswith("# this plan may be placed anywhere\n")
    assert yaml.safe_load(kai.render(run)) == {"annotations": {}}
    assert kai.notes(run)[0] == "The workload needs no annotation, only the label kai.scheduler/queue."


def test_two_sizes_of_segments_cannot_be_said() -> None:
    run = planned(ParallelLayout(dp=8, tp=16, ep=4, expert_tp=16))
    spans = (span(RankGroup.TP, level="rack"), span(RankGroup.EP, level="block"))
    ((_, value),) = found_gaps(kai.GAPS, replace(run, spans=spans, levels=("block", "rack")))
    assert value == "8 pods in a block; 2 pods in a rack"


def test_segments_are_told_apart_from_what_the_workload_has() -> None:
    run = replace(
        planned(ParallelLayout(dp=4, tp=16)), spans=(span(RankGroup.TP, level="rack"),), levels=("zone", "rack")
    )
    gang = PlacementWish(group=RankGroup.GANG, level="zone", required=True)
    text = kai.render(replace(run, workload=replace(run.workload, placement=(gang,))))
    workload, template = text.split("---\n")
    assert workload.startswith("# metadata of the workload\n")
    assert template.startswith("# metadata of the pod template\n")
    assert [len(yaml.safe_load(each)["annotations"]) for each in (workload, template)] == [1, 2]
    assert any("PyTorchJob" in note for note in kai.notes(run))
    assert not any("PyTorchJob" in note for note in kai.notes(planned(ParallelLayout(dp=8))))


def test_the_reader_is_told_to_name_the_topology() -> None:
    run = replace(planned(ParallelLayout(dp=4, tp=16)), spans=(span(RankGroup.TP, level="rack"),), levels=("rack",))
    assert any("kai.scheduler/topology" in note for note in kai.notes(run))
