from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.placement.balanced import BalancedSolver, even_shares
from tests.support.fleets import fleet, gang, node, tree_of


def placed_on(tree: TopologyTree, num_ranks: int, *, tp: int = 1, **others: object) -> Counter[str]:
    problem = PlacementProblem(layout=gang(num_ranks, tp=tp), tree=tree, **others)  # type: ignore[arg-type]
    result = BalancedSolver().place(problem, time_limit_s=1.0, seed=0)
    assert isinstance(result, Placed), result
    return Counter(slot.node for slot in result.placement.slots)


def racks_of(takes: Counter[str], tree: TopologyTree) -> Counter[str]:
    rack = {node.id: node.path[-1] for node in tree.nodes}
    ranks: Counter[str] = Counter()
    for name, taken in takes.items():
        ranks[rack[name]] += taken
    return ranks


def test_a_gang_that_needs_two_racks_takes_equal_shares_of_both():
    """Best fit would fill the first rack and put the rest into the second."""
    tree = fleet(8)
    assert racks_of(placed_on(tree, 48, tp=8, preferred_level="rack"), tree) == {"r000": 24, "r001": 24}


def test_nodes_of_a_rack_start_equally_many_processes():
    assert placed_on(fleet(4), 12) == {"n0000": 6, "n0001": 6}


def test_one_more_domain_is_taken_where_that_makes_shares_equal():
    tree = tree_of(
        node("a", path=("b", "r1")), *(node(f"c{number}", path=("b", f"q{number}"), free=5) for number in range(4))
    )
    assert sorted(placed_on(tree, 12, preferred_level="rack").values()) == [4, 4, 4]


def test_a_domain_that_holds_all_is_not_split():
    tree = fleet(8)
    assert racks_of(placed_on(tree, 32, tp=8), tree) == {"r000": 32}


def test_tight_domains_are_taken_before_large_ones():
    tree = tree_of(*(node(f"big{n}", path=("b", "r1")) for n in range(4)), node("small", path=("b", "r2")))
    assert placed_on(tree, 8, preferred_level="rack") == {"small": 8}


def test_groups_that_reach_over_the_nodes_of_a_rack_stay_whole():
    tree = replace(fleet(36, slots=4, nodes_per_rack=18), scale_up_level="rack")
    takes = racks_of(placed_on(tree, 96, tp=16), tree)
    assert takes == {"r000": 48, "r001": 48}


@settings(deadline=None)
@given(rooms=st.lists(st.integers(0, 6), min_size=1, max_size=5), data=st.data())
def test_shares_add_up_fit_and_are_as_even_as_any_on_as_many_bins(rooms: list[int], data: st.DataObject):
    if sum(rooms) == 0:
        return
    total = data.draw(st.integers(1, sum(rooms)))
    shares = even_shares(rooms, total)
    takes = dict(shares)
    assert sum(takes.values()) == total
    assert len(takes) == len(shares)
    assert all(0 < taken <= rooms[index] for index, taken in shares)
    others = [each for each in product(*(range(room + 1) for room in rooms)) if sum(each) == total]
    alike = [[taken for taken in each if taken] for each in others if sum(map(bool, each)) == len(takes)]
    assert max(map(min, alike)) == min(takes.values())
    fewest = min(sum(map(bool, each)) for each in others)
    assert len(takes) == fewest or (len(takes) <= fewest * 1.5 and len(set(takes.values())) == 1)
