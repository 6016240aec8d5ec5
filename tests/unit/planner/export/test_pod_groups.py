from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner.export import pod_groups
from airflow_llmsched.planner.export.cells import Cell, Cells
from airflow_llmsched.planner.export.gaps import found_gaps
from tests.support.spans import span
from tests.support.tool_options import planned


def test_one_group_holds_a_gang_that_must_be_in_one_domain() -> None:
    (group,) = pod_groups.pod_groups(Cells(num_pods=4, ranks_per_pod=8, whole="rack"))
    assert group["metadata"]["name"] == "gang"
    assert group["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }


def test_each_cell_is_a_group_and_pods_find_theirs_by_their_index() -> None:
    cells = Cells(num_pods=6, ranks_per_pod=8, inner=(Cell(level="rack", num_pods=2),))
    groups = pod_groups.pod_groups(cells)
    assert [each["metadata"]["name"] for each in groups] == ["gang-0", "gang-1", "gang-2"]
    assert {each["spec"]["schedulingPolicy"]["gang"]["minCount"] for each in groups} == {2}
    run = replace(planned(ParallelLayout(dp=3, tp=16)), spans=(span(RankGroup.TP, level="rack"),), levels=("rack",))
    notes = " ".join(pod_groups.notes(run))
    assert "gang-<index // 2>" in notes
    assert "barrier" in notes
    assert "GenericWorkload and TopologyAwareWorkloadScheduling, which are off" in notes
    assert "TopologyAware" not in " ".join(pod_groups.notes(planned(ParallelLayout(dp=8))))


def test_a_level_around_the_groups_cannot_be_said() -> None:
    run = planned(ParallelLayout(dp=4, tp=16))
    wish = PlacementWish(group=RankGroup.GANG, level="zone", required=True)
    run = replace(
        run,
        spans=(span(RankGroup.TP, level="rack"),),
        levels=("zone", "rack"),
        workload=replace(run.workload, placement=(wish,)),
    )
    ((gap, value),) = found_gaps(pod_groups.GAPS, run)
    assert (gap.path, value) == ("placement", "zone around rack")
