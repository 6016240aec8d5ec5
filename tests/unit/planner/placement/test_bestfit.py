from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from tests.support.fleets import fleet, gang, node, tree_of


def place(tree: TopologyTree, num_ranks: int, *, tp: int = 1, **others: object) -> Placed | NotPlaced:
    problem = PlacementProblem(layout=gang(num_ranks, tp=tp), tree=tree, **others)  # type: ignore[arg-type]
    return BestFitSolver().place(problem, time_limit_s=1.0, seed=0)


def nodes_of(result: Placed | NotPlaced) -> dict[str, int]:
    assert isinstance(result, Placed), result
    counts: dict[str, int] = {}
    for slot in result.placement.slots:
        counts[slot.node] = counts.get(slot.node, 0) + 1
    return counts


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    nodes = [
        TopologyNode(
            id=NodeId(f"n{number}"),
            path=(f"b{draw(st.integers(0, 1))}", f"r{draw(st.integers(0, 1))}"),
            shape="x",
            num_slots=4,
            num_free_slots=draw(st.integers(0, 4)),
            unusable_reason=draw(st.sampled_from([None, None, None, "drained"])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    tp = draw(st.sampled_from([1, 2, 4]))
    return PlacementProblem(
        layout=gang(tp * draw(st.integers(1, 6)), tp=tp),
        tree=TopologyTree(levels=("block", "rack"), nodes=tuple(nodes)),
        required_level=draw(st.sampled_from([None, "block", "rack", "node"])),
        preferred_level=draw(st.sampled_from([None, "block", "rack"])),
        excluded=frozenset(draw(st.sets(st.sampled_from([each.id for each in nodes]), max_size=2))),
    )


def domain(tree: TopologyTree, name: NodeId, level: str) -> tuple[str, ...]:
    found = next(each for each in tree.nodes if each.id == name)
    return (*found.path, name) if level == "node" else found.path[: tree.levels.index(level) + 1]


def solutions(problem: PlacementProblem) -> list[dict[NodeId, int]]:
    """Every way to spread whole tensor groups over nodes, by brute force."""
    tp, want = problem.layout.tp, problem.layout.world_size
    usable = [each for each in problem.tree.nodes if each.id not in problem.excluded]
    options = [range(0, each.usable_slots // tp * tp + 1, tp) for each in usable]
    found = []
    for takes in product(*options):
        chosen = {each.id: take for each, take in zip(usable, takes, strict=True) if take}
        level = problem.required_level
        spread = {domain(problem.tree, name, level) for name in chosen} if level else {()}
        if sum(takes) == want and len(spread) == 1:
            found.append(chosen)
    return found


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_it_refuses_only_what_no_placement_satisfies_and_spans_the_fewest_preferred_domains(
    problem: PlacementProblem,
) -> None:
    result = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    possible = solutions(problem)
    if not possible:
        assert isinstance(result, NotPlaced)
        assert sum(result.reasons.values()) == len(problem.tree.nodes)
        return
    taken = nodes_of(result)
    assert taken in possible
    if problem.preferred_level:
        level = problem.preferred_level
        spans = [len({domain(problem.tree, name, level) for name in each}) for each in (taken, *possible)]
        assert spans[0] == min(spans)


@settings(deadline=None)
@given(problem=problems(), seed=st.integers(0, 999))
def test_the_order_of_nodes_and_the_seed_do_not_matter(problem: PlacementProblem, seed: int) -> None:
    nodes = list(problem.tree.nodes)
    random.Random(seed).shuffle(nodes)
    shuffled = PlacementProblem(
        layout=problem.layout,
        tree=TopologyTree(levels=problem.tree.levels, nodes=tuple(nodes)),
        required_level=problem.required_level,
        preferred_level=problem.preferred_level,
        excluded=problem.excluded,
    )
    solver = BestFitSolver()
    assert solver.place(problem, time_limit_s=1.0, seed=0) == solver.place(shuffled, time_limit_s=9.0, seed=seed)


@settings(deadline=None)
@given(problem=problems())
def test_ranks_are_numbered_without_gaps_consecutive_on_a_node_and_one_to_a_slot(problem: PlacementProblem) -> None:
    result = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    if isinstance(result, NotPlaced):
        return
    slots = result.placement.slots
    assert [slot.rank for slot in slots] == list(range(problem.layout.world_size))
    assert len({(slot.node, slot.slot) for slot in slots}) == len(slots)
    for name in result.placement.nodes:
        on_node = result.placement.on(name)
        assert [slot.local_rank for slot in on_node] == list(range(len(on_node)))
        assert on_node[-1].rank - on_node[0].rank == len(on_node) - 1
        assert on_node[0].rank % problem.layout.tp == len(on_node) % problem.layout.tp == 0


def test_the_smallest_domain_that_holds_the_gang_is_used() -> None:
    tree = tree_of(
        *(node(f"big{number}", path=("b", "r1")) for number in range(4)),
        *(node(f"small{number}", path=("b", "r2")) for number in range(2)),
    )
    assert nodes_of(place(tree, 16)) == {"small0": 8, "small1": 8}


def test_whole_nodes_come_first_and_the_rest_fills_a_used_one() -> None:
    tree = tree_of(node("a", free=4), node("b"), node("c"), node("d"), levels=("block", "rack"))
    assert nodes_of(place(tree, 20)) == {"a": 4, "b": 8, "c": 8}


def test_a_preferred_level_beats_a_tighter_fit() -> None:
    tree = tree_of(
        node("a", path=("b1", "r1")), node("b", path=("b1", "r2")),
        *(node(f"c{number}", path=("b2", "r3")) for number in range(3)),
    )  # fmt: skip
    assert set(nodes_of(place(tree, 16))) == {"a", "b"}
    preferred = place(tree, 16, preferred_level="rack")
    assert set(nodes_of(preferred)) == {"c0", "c1"}
    assert isinstance(preferred, Placed)
    assert preferred.num_domains == 1


def test_a_refusal_says_the_smallest_relaxation() -> None:
    narrow = place(fleet(12), 48, required_level="rack")
    assert isinstance(narrow, NotPlaced)
    assert narrow.summary == "cannot place a gang of 48 ranks: 32 fit in one rack"
    assert narrow.reasons == {"usable, but its rack is too small": 12}
    assert narrow.relaxation == "allow level 'block' instead of 'rack'"
    wide = place(fleet(12), 80, required_level="block")
    assert isinstance(wide, NotPlaced)
    assert wide.relaxation == "do not require level 'block'"
    short = place(fleet(2), 17)
    assert isinstance(short, NotPlaced)
    assert short.relaxation == "ask for at most 16 ranks"
    excluded = place(fleet(2), 16, excluded=frozenset({NodeId("n0000")}))
    assert isinstance(excluded, NotPlaced)
    assert excluded.relaxation == "admit the excluded nodes"
    empty = place(tree_of(node("a", unusable="drained")), 1)
    assert isinstance(empty, NotPlaced)
    assert empty.relaxation is None


def test_a_tree_without_levels_is_one_domain() -> None:
    result = place(tree_of(node("a", path=()), node("b", path=()), levels=()), 12)
    assert nodes_of(result) == {"a": 8, "b": 4}
    assert isinstance(result, Placed)
    assert result.num_domains == 1


def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(ValueError, match="no level 'pod'"):
        place(fleet(1), 1, required_level="pod")


def test_a_thousand_nodes_are_placed_in_a_moment() -> None:
    tree = fleet(1024, nodes_per_rack=16, racks_per_block=8)
    start_s = time.perf_counter()
    result = place(tree, 4096, tp=8, preferred_level="block")
    assert isinstance(result, Placed)
    assert result.placement.world_size == 4096
    assert time.perf_counter() - start_s < 2.0


def test_ranks_get_the_slots_that_are_free_not_the_first_ones() -> None:
    busy = replace(node("a", free=3), free_slots=(2, 5, 6))
    result = place(tree_of(busy), 2)
    assert isinstance(result, Placed)
    assert [(slot.slot, slot.local_rank) for slot in result.placement.slots] == [(2, 0), (5, 1)]
