"""What is written out for schedulers keeps tensor- and expert-parallel groups together, whatever they choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner.export.cells import Cell, cells_of, is_uneven
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.export.tools import TOOLS, write_out
from airflow_llmsched.planner.placement.wishes import stride_and_size
from tests.support import scheduler_rules
from tests.support.scheduler_rules import Nodes
from tests.support.spans import span
from tests.support.tool_options import planned

LEVELS = ("zone", "block", "rack")
TP, EP, GANG = RankGroup.TP, RankGroup.EP, RankGroup.GANG


def run_of(layout: ParallelLayout, *, levels: tuple[str, ...] = LEVELS, wishes=(), **reached: str | None) -> PlannedRun:
    spans = tuple(span(RankGroup(group), level=level) for group, level in reached.items())
    run = planned(layout)
    return replace(run, spans=spans, levels=levels, workload=replace(run.workload, placement=tuple(wishes)))


def test_groups_inside_a_node_need_nothing() -> None:
    cells = cells_of(run_of(ParallelLayout(dp=8, tp=8), tp="node", dp="block"))
    assert (cells.num_pods, cells.ranks_per_pod, cells.whole, cells.inner) == (8, 8, None, ())


def test_a_tensor_group_over_two_nodes_is_a_cell_of_two_pods_where_the_plan_had_it() -> None:
    assert cells_of(run_of(ParallelLayout(dp=4, tp=16), tp="rack")).inner == (Cell(level="rack", num_pods=2),)


def test_layers_nest_and_a_wider_one_that_says_nothing_more_is_left_out() -> None:
    layout = ParallelLayout(dp=16, tp=16, ep=8, expert_tp=8)
    assert cells_of(run_of(layout, tp="rack", ep="block")).inner == (
        Cell(level="block", num_pods=8),
        Cell(level="rack", num_pods=2),
    )
    assert cells_of(run_of(layout, tp="block", ep="rack")).inner == (Cell(level="rack", num_pods=8),)


def test_groups_that_straddle_nodes_are_kept_by_the_runs_in_which_they_lie_whole() -> None:
    cells = cells_of(run_of(ParallelLayout(dp=4, tp=12), tp="rack"))
    assert cells.inner == (Cell(level="rack", num_pods=3),)


def test_a_required_wish_for_the_gang_is_its_whole_and_a_preferred_one_is_preferred() -> None:
    hard, soft = (PlacementWish(group=GANG, level="block", required=required) for required in (True, False))
    layout = ParallelLayout(dp=4, tp=16)
    assert cells_of(run_of(layout, wishes=[hard], tp="rack")).whole == "block"
    assert cells_of(run_of(layout, wishes=[soft], tp="rack")).preferred == "block"
    assert cells_of(run_of(layout, wishes=[hard], tp="rack")).inner == (Cell(level="rack", num_pods=2),)


def test_a_preferred_level_that_is_no_wider_than_a_cell_is_left_out() -> None:
    soft = PlacementWish(group=GANG, level="rack", required=False)
    assert cells_of(run_of(ParallelLayout(dp=4, tp=16), wishes=[soft], tp="rack")).preferred is None


def pipelines(layout: ParallelLayout, level: str, **reached: str | None) -> PlannedRun:
    return run_of(layout, wishes=[PlacementWish(group=RankGroup.PP, level=level, required=True)], **reached)


def test_pipelines_with_a_required_level_are_numbered_together() -> None:
    cells = cells_of(pipelines(ParallelLayout(dp=8, tp=8, pp=2), "rack", tp="node"))
    assert (cells.whole, cells.inner) == (None, (Cell(level="rack", num_pods=2),))
    assert [cells.node_rank(pod) for pod in range(6)] == [0, 8, 1, 9, 2, 10]


def test_groups_inside_a_stage_stay_neighbours_when_pipelines_are_together() -> None:
    cells = cells_of(pipelines(ParallelLayout(dp=4, tp=16, pp=2), "block", tp="rack"))
    assert cells.inner == (Cell(level="block", num_pods=4), Cell(level="rack", num_pods=2))
    assert [cells.node_rank(pod) for pod in range(8)] == [0, 1, 8, 9, 2, 3, 10, 11]


def test_groups_wider_than_pipelines_take_the_other_stages_in() -> None:
    layout = ParallelLayout(dp=8, tp=8, ep=4, pp=2)
    assert cells_of(pipelines(layout, "rack", tp="node", ep="block")).inner == (
        Cell(level="block", num_pods=8),
        Cell(level="rack", num_pods=2),
    )


def test_who_cannot_number_nodes_anew_keeps_the_whole_gang_together_for_its_pipelines() -> None:
    run = pipelines(ParallelLayout(dp=8, tp=8, pp=2), "rack", tp="node")
    cells = cells_of(run, renumbers=False)
    assert (cells.whole, cells.inner, cells.num_stages) == ("rack", (), 1)


def test_groups_of_one_rank_need_nothing() -> None:
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    cells = cells_of(run_of(ParallelLayout(dp=1, tp=8, cp=4, pp=2), wishes=[wish], tp="node"))
    assert (cells.whole, cells.inner) == (None, ())


def test_nodes_with_different_numbers_of_ranks_are_no_equal_pods() -> None:
    run = replace(planned(ParallelLayout(dp=3)), ranks_on_nodes=(2, 1))
    assert is_uneven(run)
    for name in ("kueue", "volcano", "kai", "pod-groups", "slurm"):
        assert [gap.path for gap, _ in found_gaps(TOOLS[name].gaps, run)] == ["placement"]


RULES: dict[str, Callable[..., list[str] | None]] = {
    "kueue": scheduler_rules.kueue,
    "volcano": scheduler_rules.volcano,
    "kai": scheduler_rules.kai,
    "pod-groups": scheduler_rules.pod_groups,
    "slurm": scheduler_rules.slurm,
}
SLURM_LEVELS = {"switch": ("switch2", "switch1", "switch0"), "block": ("block16", "block4", "block")}


def random_fleet(chance: np.random.Generator, levels: tuple[str, ...]) -> Nodes:
    paths = {}
    for index in range(int(chance.integers(24, 96))):
        zone, block, rack = index // 48, index // 16, index // 8
        if chance.random() < 0.75:
            # Names of racks repeat between blocks: path is identity.
            paths[f"n{index:03d}"] = (f"z{zone}", f"b{block}", f"r{rack % 2}")
    return Nodes(levels=levels, paths=paths)


def random_run(chance: np.random.Generator, levels: tuple[str, ...]) -> PlannedRun:
    tp, cp = int(chance.choice([8, 12, 16, 32])), int(chance.choice([1, 2]))
    ep = int(chance.choice([1, 2, 4]))
    dp = ep * int(chance.choice([1, 2]))
    layout = ParallelLayout(dp=dp, tp=tp, cp=cp, ep=ep, pp=int(chance.choice([1, 2])))
    if layout.world_size % 8:
        layout = replace(layout, dp=2 * dp)
    wishes = []
    if chance.random() < 0.4:
        wishes.append(
            PlacementWish(group=GANG, level=str(chance.choice(levels[:2])), required=bool(chance.integers(2)))
        )
    if layout.pp > 1 and chance.random() < 0.6:
        wishes.append(PlacementWish(group=RankGroup.PP, level=str(chance.choice(levels)), required=True))
    reached = {"tp": str(chance.choice(levels)), "ep": str(chance.choice([*levels[:2], "node"]))}
    return run_of(layout, levels=levels, wishes=wishes, **reached)


@pytest.mark.parametrize("name", RULES)
def test_no_scheduler_tears_a_group_apart_that_the_plan_kept_together(name: str) -> None:
    chance = np.random.default_rng(11)
    outcomes: Counter[str] = Counter()
    for _ in range(400):
        levels = SLURM_LEVELS[str(chance.choice(["switch", "block"]))] if name == "slurm" else LEVELS
        nodes, run = random_fleet(chance, levels), random_run(chance, levels)
        if found_gaps(TOOLS[name].gaps, run):
            outcomes["cannot be told"] += 1
            continue
        num_pods = len(run.ranks_on_nodes)
        chosen = RULES[name](write_out(name, run).text, nodes, num_pods=num_pods)
        outcomes["waits" if chosen is None else "placed"] += 1
        if chosen is not None:
            assert len(set(chosen)) == num_pods
            assert_kept(run, nodes, chosen)
    assert outcomes["placed"] >= 40, outcomes


def assert_kept(run: PlannedRun, nodes: Nodes, chosen: list[str]) -> None:
    cells = cells_of(run)
    by_rank = {cells.node_rank(pod): name for pod, name in enumerate(chosen)}
    assert sorted(by_rank) == list(range(len(chosen)))
    node_of_rank = [by_rank[rank] for rank, num in enumerate(run.ranks_on_nodes) for _ in range(num)]
    needs = [(each.group, each.level) for each in run.spans if each.level in nodes.levels]
    needs += [(wish.group, wish.level) for wish in run.workload.placement if wish.required]
    for group, level in needs:
        stride, size = stride_and_size(run.layout, group)
        for first in range(len(node_of_rank)):
            if first // stride % size:
                continue
            members = {nodes.paths[node_of_rank[first + each * stride]][: nodes.depth(level)] for each in range(size)}
            assert len(members) == 1, (group, level, run.layout, chosen)


def test_without_what_is_written_out_schedulers_do_tear_groups_apart() -> None:
    """Else the test above could not fail."""
    chance = np.random.default_rng(5)
    torn = 0
    for _ in range(60):
        nodes, run = random_fleet(chance, LEVELS), random_run(chance, LEVELS)
        silent = replace(run, spans=(), workload=replace(run.workload, placement=()))
        chosen = scheduler_rules.kai(write_out("kai", silent).text, nodes, num_pods=len(run.ranks_on_nodes))
        try:
            assert chosen is None or assert_kept(run, nodes, chosen) is None
        except AssertionError:
            torn += 1
    assert torn > 10
