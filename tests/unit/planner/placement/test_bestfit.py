from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.testing.solver_contract import random_problems, solutions, takes_of
from tests.support.fleets import fleet, gang, node, tree_of, with_busy_links


def place(tree: TopologyTree, num_ranks: int, *, tp: int = 1, **others: object) -> Placed | NotPlaced:
    problem = PlacementProblem(layout=gang(num_ranks, tp=tp), tree=tree, **others)  # type: ignore[arg-type]
    return BestFitSolver().place(problem, time_limit_s=1.0, seed=0)


def nodes_of(result: Placed | NotPlaced) -> dict[str, int]:
    assert isinstance(result, Placed), result
    counts: dict[str, int] = {}
    for slot in result.placement.slots:
        counts[slot.node] = counts.get(slot.node, 0) + 1
    return counts


def is_inside_joined_nodes(problem: PlacementProblem) -> bool:
    """Whether the preferred level lies inside the domains that groups must not leave; there it is only tried."""
    levels, joined = problem.tree.levels, problem.tree.scale_up_level
    preferred = problem.preferred_level
    return joined is not None and preferred is not None and levels.index(preferred) > levels.index(joined)


def num_spanned(problem: PlacementProblem, nodes: Iterable[NodeId]) -> int:
    depth = problem.tree.levels.index(str(problem.preferred_level)) + 1
    return len({node.path[:depth] for node in problem.tree.nodes if node.id in nodes})


def test_it_spans_the_fewest_preferred_domains_that_any_placement_does() -> None:
    num_asked = 0
    for problem in random_problems(seed=21, number=150):
        result = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
        if isinstance(result, Placed) and problem.preferred_level and not is_inside_joined_nodes(problem):
            num_asked += 1
            least = min(num_spanned(problem, takes) for takes in solutions(problem))
            assert num_spanned(problem, takes_of(result)) == least
    assert num_asked > 20


def test_groups_reach_across_the_nodes_of_one_rack_where_its_links_do_and_leave_what_is_over() -> None:
    """Racks of 18 nodes of four: groups of 16 fill 64 of each rack's 72 slots."""
    tree = replace(fleet(36, slots=4, nodes_per_rack=18), scale_up_level="rack")
    assert nodes_of(place(tree, 128, tp=16)) == {f"n{number:04d}": 4 for number in (*range(16), *range(18, 34))}
    refused = place(tree, 144, tp=16)
    assert isinstance(refused, NotPlaced)
    assert refused.summary == "cannot place a gang of 144 ranks: 128 fit in the fleet"
    none = place(tree, 144, tp=144)
    assert isinstance(none, NotPlaced)
    assert none.reasons == {"fewer free slots in its rack than tp=144": 36}


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


def test_a_gang_that_no_rack_holds_leaves_racks_alone_whose_links_others_fill() -> None:
    tree = fleet(16, racks_per_block=4)
    quiet = nodes_of(place(tree, 48))
    assert set(quiet) == {f"n{number:04d}" for number in range(6)}
    busy = with_busy_links(tree, {("b00", "r000"): 0.5, ("b00", "r001"): 0.2, ("b00", "r002"): 0.04})
    assert set(nodes_of(place(busy, 48))) == {f"n{number:04d}" for number in range(8, 14)}


def test_it_goes_to_no_more_racks_for_that() -> None:
    sizes = (4, 2, 2, 2)
    tree = tree_of(
        *(node(f"{rack}{number}", path=("b0", f"r{rack}")) for rack, size in enumerate(sizes) for number in range(size))
    )
    busy = with_busy_links(tree, {("b0", "r0"): 0.9})
    assert nodes_of(place(busy, 48)) == nodes_of(place(tree, 48))
    assert set(nodes_of(place(busy, 48))) > {"00", "01", "02", "03"}


def test_a_gang_that_a_rack_holds_uses_no_link_and_goes_where_it_fits_best() -> None:
    tree = fleet(8)
    used = replace(tree, nodes=(replace(tree.nodes[0], num_free_slots=0), *tree.nodes[1:]))
    busy = with_busy_links(used, {("b00", "r000"): 1.0})
    assert set(nodes_of(place(busy, 24, preferred_level="rack"))) == {"n0001", "n0002", "n0003"}


def test_no_placement_is_refused_for_busy_links_and_none_breaks_a_rule() -> None:
    for problem in random_problems(seed=3, number=200):
        tree = with_busy_links(problem.tree, {each.path: 0.7 for each in problem.tree.nodes[::2]})
        quiet = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
        found = BestFitSolver().place(replace(problem, tree=tree), time_limit_s=1.0, seed=0)
        assert type(found) is type(quiet)
        if isinstance(found, Placed):
            assert found.num_domains <= quiet.num_domains or problem.preferred_level is not None
            assert sum(takes_of(found).values()) == problem.layout.world_size
