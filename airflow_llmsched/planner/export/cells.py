"""What must stay together, for schedulers that choose the nodes themselves: runs of pods inside one domain. Pure.

A pod is one node's share of the gang, and pods are numbered as nodes are: in the order of their ranks. As ranks are
numbered with tp fastest, groups that must not leave a domain lie inside runs of neighbouring pods: cells. What holds of
a cell holds of every group in it, so that a scheduler has to know of cells only. Pipelines lie in no such run but the
gang: where a level is required of them, pods are numbered pipeline by pipeline instead, and the rank of each pod's node
follows from its index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_llmsched.domain.layout import RankGroup
from airflow_llmsched.planner.export.gaps import Gap
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.placement.wishes import stride_and_size

_KEPT = (RankGroup.TP, RankGroup.EP)
"""Groups that must go on having the links that the plan gave them: those whose traffic no compute hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Each run of ``num_pods`` pods, counted from the first, must be inside one domain of ``level``."""

    level: str
    num_pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What a gang of equal pods needs of whoever places it.

    Attributes:
        num_pods: pods of the gang.
        ranks_per_pod: ranks, and accelerators, of each.
        whole: the level of which one domain must hold them all; None: none.
        preferred: the level of which one should; None where ``whole`` or a cell says more.
        inner: smaller cells, largest first; each divides the one before it and is of a level further in.
        num_stages: pipeline stages whose pods take turns in the numbering of pods; 1: pods are numbered as nodes are.
        turn: how many neighbouring pods of a stage come in a row, before those of the next stage.
    """

    num_pods: int
    ranks_per_pod: int
    whole: str | None = None
    preferred: str | None = None
    inner: tuple[Cell, ...] = ()
    num_stages: int = 1
    turn: int = 1

    def node_rank(self, pod: int) -> int:
        """Return the rank, in the gang, of the node that the pod of an index is."""
        if self.num_stages == 1:
            return pod
        turns, within = divmod(pod, self.turn)
        before, stage = divmod(turns, self.num_stages)
        return stage * (self.num_pods // self.num_stages) + before * self.turn + within


def cells_of(run: PlannedRun, *, renumbers: bool = True) -> Cells:
    """Return what keeps tensor- and expert-parallel groups as close as planned, and every required wish.

    With ``renumbers`` off pods are numbered as nodes are, whatever that costs pipelines.
    """
    num_pods, ranks_per_pod = len(run.ranks_on_nodes), run.ranks_on_nodes[0]
    needs = list(_needs(run))
    turn = _turn(run, needs) if renumbers else None
    pods_at: dict[int, int] = {}
    for group, depth in needs:
        num = _num_pods(run, group)
        if turn is not None and turn % num:  # it is wider than a turn: the other stages' turns lie between
            num = turn * run.layout.pp if group is RankGroup.PP else math.lcm(num, turn) * run.layout.pp
        if num > 1:
            pods_at[depth] = _nested(math.lcm(num, pods_at.get(depth, 1)), num_pods)
    found: list[Cell] = []
    for depth in sorted(pods_at, reverse=True):
        within = found[-1].num_pods if found else 1
        num = _nested(math.lcm(pods_at[depth], within), num_pods)
        if num > within:  # else domains further in, which this one contains, hold it already
            found.append(Cell(level=run.levels[depth], num_pods=num))
    whole = found.pop().level if found and found[-1].num_pods == num_pods else None
    inner = tuple(reversed(found))
    return Cells(
        num_pods=num_pods,
        ranks_per_pod=ranks_per_pod,
        whole=whole,
        preferred=_preferred(run, whole, inner),
        inner=inner,
        num_stages=1 if turn is None else run.layout.pp,
        turn=turn or 1,
    )


def _num_pods(run: PlannedRun, group: RankGroup) -> int:
    """Return how many neighbouring pods, numbered as nodes are, each group of a kind lies whole in."""
    stride, size = stride_and_size(run.layout, group)
    if size == 1:
        return 1
    ranks_per_pod = run.ranks_on_nodes[0]
    return math.lcm(stride * size, ranks_per_pod) // ranks_per_pod


def _turn(run: PlannedRun, needs: Sequence[tuple[RankGroup, int]]) -> int | None:
    """Return how many pods of a stage are to come in a row; None where pods are best numbered as nodes are.

    As many as groups need that must be in domains no wider than pipelines': these are then in one with them anyhow.
    """
    innermost = max((depth for group, depth in needs if group is RankGroup.PP), default=None)
    if innermost is None or len(run.ranks_on_nodes) % run.layout.pp:
        return None
    inside = [group for group, depth in needs if group is not RankGroup.PP and depth >= innermost]
    turn = math.lcm(*(_num_pods(run, group) for group in inside))
    num_of_stage = len(run.ranks_on_nodes) // run.layout.pp
    return turn if turn < num_of_stage and num_of_stage % turn == 0 else None


def _nested(num: int, num_pods: int) -> int:
    """Return the smallest cell of at least ``num`` pods that divides the gang: the gang itself if no other does."""
    return num if num_pods % num == 0 else num_pods


def _needs(run: PlannedRun) -> Iterator[tuple[RankGroup, int]]:
    """Yield groups that must stay inside domains of a level above the node, with the depth of that level.

    Closer than a pod is close enough.
    """
    for span in run.spans:
        if span.group in _KEPT and span.level in run.levels:
            yield span.group, run.levels.index(str(span.level))
    for wish in run.workload.placement:
        if wish.required and wish.level in run.levels:
            yield wish.group, run.levels.index(wish.level)


def _preferred(run: PlannedRun, whole: str | None, inner: tuple[Cell, ...]) -> str | None:
    wished = (
        wish.level
        for wish in run.workload.placement
        if wish.group is RankGroup.GANG and not wish.required and wish.level in run.levels
    )
    level = next(wished, None)
    if level is None or whole is not None:
        return None
    # A gang that need not, but should, be in a domain no larger than its cells' says nothing a scheduler can use.
    return level if not inner or run.levels.index(level) < run.levels.index(inner[0].level) else None


def is_uneven(run: PlannedRun) -> bool:
    """Whether nodes have different numbers of ranks, so that the gang is no set of equal pods."""
    return len(set(run.ranks_on_nodes)) > 1


def layers_beyond(limit: int, *, why: str) -> Gap:
    """Return the gap of a scheduler that can be told of at most ``limit`` kinds of cells inside the gang."""

    def used(run: PlannedRun) -> object | None:
        if is_uneven(run):
            return None
        inner = cells_of(run).inner
        return "; ".join(f"{each.num_pods} pods in a {each.level}" for each in inner) if len(inner) > limit else None

    return Gap(path="placement", why=why, used=used)
