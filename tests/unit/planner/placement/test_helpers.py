from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.placement.helpers import place_helpers
from tests.support.fleets import fleet


def gang(*nodes: tuple[int, int]) -> Placement:
    """Return ranks on the first slots of nodes: (number of the node, ranks there)."""
    slots: list[RankSlot] = []
    for number, num_ranks in nodes:
        slots += [
            RankSlot(rank=len(slots) + local, node=NodeId(f"n{number:04d}"), slot=local, local_rank=local)
            for local in range(num_ranks)
        ]
    return Placement(slots=tuple(slots))


def placed(
    kind: RoleKind,
    num_ranks: int,
    placement: Placement,
    *,
    accelerators: int = 0,
    layout: ParallelLayout | None = None,
    tree: TopologyTree | None = None,
    **rules: object,
) -> list[tuple[str, tuple[int, ...]]] | None:
    roles = (
        RoleSpec(kind=RoleKind.TRAINER),
        RoleSpec(kind=kind, num_ranks=num_ranks, command=("x",), accelerators_per_rank=accelerators),
    )
    found = place_helpers(
        roles,
        placement,
        layout=layout or ParallelLayout(dp=placement.world_size),
        tree=tree or fleet(8),
        **rules,  # type: ignore[arg-type]
    )
    if found is None:
        return None
    assert found.slots == placement.slots
    assert [(each.role, each.index) for each in found.helpers] == [(kind, index) for index in range(num_ranks)]
    return [(each.node, each.slots) for each in found.helpers]


def test_trainers_alone_have_no_helpers() -> None:
    placement = gang((0, 8))
    roles = (RoleSpec(kind=RoleKind.TRAINER),)
    assert place_helpers(roles, placement, layout=ParallelLayout(dp=8), tree=fleet(1)) == placement


def test_a_loader_is_on_the_node_of_its_replica_and_takes_no_slot() -> None:
    layout = ParallelLayout(dp=2, tp=4, pp=2)  # stage 0 of replica 0 on ranks 0-3, of replica 1 on 4-7
    assert placed(RoleKind.DATA_LOADER, 2, gang((0, 4), (1, 4), (2, 8)), layout=layout) == [
        ("n0000", ()),
        ("n0001", ()),
    ]


def test_parameter_servers_are_spread_over_the_gangs_nodes() -> None:
    nodes = placed(RoleKind.PARAMETER_SERVER, 4, gang((0, 8), (3, 8)))
    assert nodes == [("n0000", ()), ("n0000", ()), ("n0003", ()), ("n0003", ())]


def test_an_evaluator_gets_slots_that_the_gang_left_on_its_nodes() -> None:
    assert placed(RoleKind.EVALUATOR, 1, gang((0, 8), (1, 5)), accelerators=2) == [("n0001", (5, 6))]


def test_an_evaluator_that_finds_no_slot_on_the_gangs_nodes_goes_to_the_nearest_other_one() -> None:
    assert placed(RoleKind.EVALUATOR, 1, gang((1, 8)), accelerators=2) == [("n0000", (0, 1))]
    assert placed(RoleKind.EVALUATOR, 1, gang((5, 8)), accelerators=2) == [("n0004", (0, 1))]


def test_a_required_level_and_excluded_nodes_bind_helpers_too() -> None:
    full_rack = gang((0, 8), (1, 8), (2, 8), (3, 8))
    assert placed(RoleKind.EVALUATOR, 1, full_rack, accelerators=1, required_level="rack") is None
    assert placed(RoleKind.EVALUATOR, 1, full_rack, accelerators=1, required_level="block") == [("n0004", (0,))]
    excluded = frozenset({NodeId("n0004")})
    assert placed(RoleKind.EVALUATOR, 1, full_rack, accelerators=1, excluded=excluded) == [("n0005", (0,))]
    assert placed(RoleKind.EVALUATOR, 1, gang((0, 8)), accelerators=1, required_level="node") is None


def test_accelerators_of_one_helper_are_on_one_node() -> None:
    assert placed(RoleKind.EVALUATOR, 1, gang((0, 5), (1, 5)), accelerators=4, tree=fleet(2)) is None
    assert placed(RoleKind.EVALUATOR, 2, gang((0, 5), (1, 5)), accelerators=3, tree=fleet(2)) == [
        ("n0001", (5, 6, 7)),
        ("n0000", (5, 6, 7)),
    ]


@pytest.mark.parametrize(("max_processes", "expected"), [(10, ["n0000", "n0000"]), (9, ["n0000", "n0001"]), (8, None)])
def test_a_node_gets_no_more_processes_than_it_has_threads(max_processes: int, expected: list[str] | None) -> None:
    nodes = gang((0, 8), (1, 8 if max_processes == 8 else 4))
    found = placed(
        RoleKind.DATA_LOADER, 2, nodes, layout=ParallelLayout(dp=1, tp=nodes.world_size),
        max_processes_per_node=max_processes,
    )  # fmt: skip
    assert (None if found is None else [node for node, _ in found]) == expected
