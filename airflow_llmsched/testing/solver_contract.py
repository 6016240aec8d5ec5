"""What every ``PlacementSolver`` must prove, on small fleets drawn at random. A solver's author subclasses it.

Whether a gang has a placement is settled by trying all: what a solver refuses must have none.
"""

# ruff: noqa: D102  # a test's name is its sentence

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.ports import PlacementSolver

Takes = Mapping[NodeId, int]
"""How many ranks each node takes."""

NUM_PROBLEMS = 36
NODE_LEVEL = "node"


class PlacementSolverContract:
    """Subclass as ``TestMySolver`` and define the ``solver`` fixture."""

    time_limit_s = 5.0
    """Time enough for a handful of nodes."""

    @pytest.fixture
    def solver(self) -> PlacementSolver:
        """Return the adapter under test."""
        raise NotImplementedError("define the solver fixture in the subclass")

    def place(self, solver: PlacementSolver, problem: PlacementProblem, *, seed: int = 0) -> Placed | NotPlaced:
        return solver.place(problem, time_limit_s=self.time_limit_s, seed=seed)

    def test_it_refuses_a_gang_if_and_only_if_no_placement_exists(self, solver: PlacementSolver) -> None:
        num_refused = 0
        for problem in random_problems(seed=1):
            result, possible = self.place(solver, problem), list(solutions(problem))
            assert isinstance(result, Placed) == bool(possible), problem
            if isinstance(result, Placed):
                assert takes_of(result) in possible, problem
            num_refused += isinstance(result, NotPlaced)
        assert 0 < num_refused < NUM_PROBLEMS, "the draw asked only one of both questions"

    def test_each_rank_has_a_free_slot_of_its_own(self, solver: PlacementSolver) -> None:
        for problem, placed in self._placed(solver, seed=2):
            usable = {node.id: set(node.usable_slot_indexes) for node in problem.tree.nodes}
            slots = placed.placement.slots
            assert len({(slot.node, slot.slot) for slot in slots}) == problem.layout.world_size
            assert all(slot.slot in usable[slot.node] and slot.node not in problem.excluded for slot in slots)

    def test_ranks_are_numbered_in_order_and_those_of_a_node_one_after_another(self, solver: PlacementSolver) -> None:
        for problem, placed in self._placed(solver, seed=3):
            assert [slot.rank for slot in placed.placement.slots] == list(range(problem.layout.world_size))
            for node in placed.placement.nodes:
                on_node = placed.placement.on(node)
                assert [slot.local_rank for slot in on_node] == list(range(len(on_node)))
                assert on_node[-1].rank - on_node[0].rank == len(on_node) - 1

    def test_a_required_level_holds_the_whole_gang(self, solver: PlacementSolver) -> None:
        for problem, placed in self._placed(solver, seed=4):
            if problem.required_level is not None:
                domains = {_domain(problem.tree, node, problem.required_level) for node in placed.placement.nodes}
                assert len(domains) == 1, problem

    def test_levels_required_of_groups_hold_and_only_a_gang_without_such_a_placement_is_refused(
        self, solver: PlacementSolver
    ) -> None:
        num_refused = 0
        for problem in problems_with_wishes(seed=10):
            result = self.place(solver, problem)
            assert isinstance(result, Placed) == has_solution_with_wishes(problem), problem
            if isinstance(result, Placed):
                assert keeps_wishes(problem, [slot.node for slot in result.placement.slots]), problem
            num_refused += isinstance(result, NotPlaced)
        assert 0 < num_refused < NUM_PROBLEMS, "the draw asked only one of both questions"

    def test_a_tensor_parallel_group_stays_where_the_fastest_links_reach(self, solver: PlacementSolver) -> None:
        for problem, placed in self._placed(solver, seed=5):
            joined = problem.tree.scale_up_level or NODE_LEVEL
            reached = [_domain(problem.tree, slot.node, joined) for slot in placed.placement.slots]
            tp = problem.layout.tp
            assert all(len(set(reached[first : first + tp])) == 1 for first in range(0, len(reached), tp)), problem

    def test_the_order_of_nodes_does_not_matter(self, solver: PlacementSolver) -> None:
        chance = random.Random(6)  # noqa: S311 - a draw to repeat, not a secret
        for problem in random_problems(seed=6):
            nodes = list(problem.tree.nodes)
            chance.shuffle(nodes)
            shuffled = replace(problem, tree=replace(problem.tree, nodes=tuple(nodes)))
            assert self.place(solver, problem) == self.place(solver, shuffled)

    def test_a_seed_always_gives_the_same_answer(self, solver: PlacementSolver) -> None:
        for problem in random_problems(seed=7):
            assert self.place(solver, problem, seed=11) == self.place(type(solver)(), problem, seed=11)

    def test_a_refusal_counts_each_node_under_one_reason(self, solver: PlacementSolver) -> None:
        for problem in random_problems(seed=8):
            result = self.place(solver, problem)
            if isinstance(result, NotPlaced):
                assert sum(result.reasons.values()) == len(problem.tree.nodes)
                assert str(problem.layout.world_size) in result.summary

    def test_the_relaxation_that_a_refusal_names_does_fit_and_nothing_smaller_does(
        self, solver: PlacementSolver
    ) -> None:
        seen: Counter[str] = Counter()
        for problem in random_problems(seed=9, number=2 * NUM_PROBLEMS):
            result = self.place(solver, problem)
            if isinstance(result, Placed):
                continue
            if result.relaxation is None:
                assert not any(any(solutions(each)) for each in relaxations(problem).values()), problem
                continue
            seen[re.sub(r"\d+|'\w+'", "_", result.relaxation)] += 1
            known = relaxations(problem)
            assert isinstance(self.place(solver, known[result.relaxation]), Placed), result
            for smaller in list(known)[: list(known).index(result.relaxation)]:
                assert not any(solutions(known[smaller])), (smaller, result)
        assert len(seen) >= 3, seen

    def _placed(self, solver: PlacementSolver, *, seed: int) -> Iterator[tuple[PlacementProblem, Placed]]:
        for problem in random_problems(seed=seed):
            result = self.place(solver, problem)
            if isinstance(result, Placed):
                yield problem, result


def random_problems(*, seed: int, number: int = NUM_PROBLEMS) -> Iterator[PlacementProblem]:
    """Yield problems of a few nodes each: busy, drained and excluded ones, levels required, preferred or neither."""
    chance = random.Random(seed)  # noqa: S311 - a draw to repeat, not a secret
    for _ in range(number):
        yield _random_problem(chance)


def _random_problem(chance: random.Random) -> PlacementProblem:
    nodes = tuple(_random_node(chance, number) for number in range(chance.randint(1, 6)))
    tp, dp, pp = chance.choice([1, 1, 2, 4]), chance.randint(1, 5), chance.choice([1, 1, 2])
    return PlacementProblem(
        layout=ParallelLayout(dp=dp, tp=tp, pp=pp),
        tree=TopologyTree(
            levels=("block", "rack"), nodes=nodes, scale_up_level=chance.choice([None, None, "block", "rack"])
        ),
        required_level=chance.choice([None, "block", "rack", NODE_LEVEL]),
        preferred_level=chance.choice([None, "block", "rack"]),
        excluded=frozenset(each.id for each in nodes if chance.random() < 0.15),
    )


def _random_node(chance: random.Random, number: int) -> TopologyNode:
    free = tuple(sorted(chance.sample(range(4), chance.randint(0, 4))))
    return TopologyNode(
        id=NodeId(f"n{number}"),
        path=(f"b{chance.randint(0, 1)}", f"r{chance.randint(0, 1)}"),
        shape="x",
        num_slots=4,
        num_free_slots=len(free),
        free_slots=free,
        unusable_reason="drained" if chance.random() < 0.2 else None,
    )


def problems_with_wishes(*, seed: int, number: int = NUM_PROBLEMS) -> Iterator[PlacementProblem]:
    """Yield problems of up to four nodes where one or two kinds of groups must not leave a rack or a block."""
    chance = random.Random(seed)  # noqa: S311 - a draw to repeat, not a secret
    for _ in range(number):
        nodes = tuple(
            replace(_random_node(chance, index), unusable_reason=None) for index in range(chance.randint(2, 4))
        )
        nodes = tuple(
            replace(each, num_free_slots=4, free_slots=None) if chance.random() < 0.7 else each for each in nodes
        )
        kinds = chance.sample([RankGroup.DP, RankGroup.PP, RankGroup.CP], chance.randint(1, 2))
        yield PlacementProblem(
            layout=ParallelLayout(
                dp=chance.choice([1, 2, 3]),
                tp=chance.choice([1, 2, 4]),
                pp=chance.choice([1, 2]),
                cp=chance.choice([1, 2]),
            ),
            tree=TopologyTree(levels=("block", "rack"), nodes=nodes),
            wishes=tuple(
                PlacementWish(group=kind, level=chance.choice(["rack", "rack", "block"]), required=True)
                for kind in kinds
            ),
        )


def has_solution_with_wishes(problem: PlacementProblem) -> bool:
    """Whether any placement, its nodes in any order, keeps all levels required of groups, by trying all."""
    return any(
        keeps_wishes(problem, [node for node in order for _ in range(takes[node])])
        for takes in solutions(problem)
        for order in permutations(takes)
    )


def keeps_wishes(problem: PlacementProblem, node_of_rank: Sequence[NodeId]) -> bool:
    """Whether each group that has a required level is in one domain of it, given the nodes of ranks in rank order."""
    layout = problem.layout
    axes = {RankGroup.TP: layout.tp, RankGroup.CP: layout.cp, RankGroup.DP: layout.dp, RankGroup.PP: layout.pp}
    numbers = [dict(zip(reversed(axes), each, strict=True)) for each in product(*map(range, reversed(axes.values())))]
    for wish in (each for each in problem.wishes if each.required):
        together: dict[tuple[int, ...], set[tuple[str, ...]]] = {}
        for number, node in zip(numbers, node_of_rank, strict=True):
            group = tuple(number[kind] for kind in axes if kind is not wish.group)
            together.setdefault(group, set()).add(_domain(problem.tree, node, wish.level))
        if any(len(domains) > 1 for domains in together.values()):
            return False
    return True


def solutions(problem: PlacementProblem) -> Iterator[Takes]:
    """Yield every way to spread ranks over nodes that keeps the rules, by trying all."""
    usable = [each for each in problem.tree.nodes if each.usable_slots and each.id not in problem.excluded]
    joined = problem.tree.scale_up_level or NODE_LEVEL
    for numbers in _spreads([each.usable_slots for each in usable], problem.layout.world_size):
        takes = {node.id: taken for node, taken in zip(usable, numbers, strict=True) if taken}
        in_group_domain: Counter[tuple[str, ...]] = Counter()
        for node, taken in takes.items():
            in_group_domain[_domain(problem.tree, node, joined)] += taken
        level = problem.required_level
        is_together = level is None or len({_domain(problem.tree, node, level) for node in takes}) == 1
        if is_together and not any(ranks % problem.layout.tp for ranks in in_group_domain.values()):
            yield takes


def _spreads(rooms: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    if not rooms:
        if total == 0:
            yield ()
        return
    for taken in range(max(0, total - sum(rooms[1:])), min(rooms[0], total) + 1):
        yield from ((taken, *rest) for rest in _spreads(rooms[1:], total - taken))


def takes_of(placed: Placed) -> Takes:
    """Return how many ranks each node of a placement takes."""
    return Counter(slot.node for slot in placed.placement.slots)


def _domain(tree: TopologyTree, name: NodeId, level: str) -> tuple[str, ...]:
    found = next(each for each in tree.nodes if each.id == name)
    return (*found.path, name) if level == NODE_LEVEL else found.path[: tree.levels.index(level) + 1]


def relaxations(problem: PlacementProblem) -> dict[str, PlacementProblem]:
    """Return what a refusal may propose and the problem it then is, the smallest change first."""
    layout, level = problem.layout, problem.required_level
    found: dict[str, PlacementProblem] = {}
    levels = (*problem.tree.levels, NODE_LEVEL)
    if level is not None:
        for wider in reversed(levels[: levels.index(level)]):
            found[f"allow level {wider!r} instead of {level!r}"] = replace(problem, required_level=wider)
        found[f"do not require level {level!r}"] = replace(problem, required_level=None)
    if problem.excluded:
        found["admit the excluded nodes"] = replace(problem, excluded=frozenset())
    for ranks in range(layout.world_size - layout.tp, 0, -layout.tp):
        fewer = ParallelLayout(dp=ranks // layout.tp, tp=layout.tp)
        found[f"ask for at most {ranks} ranks"] = replace(problem, layout=fewer)
    if problem.excluded and level is not None:
        both = f"admit the excluded nodes and do not require level {level!r}"
        found[both] = replace(problem, excluded=frozenset(), required_level=None)
    for tp in (each for each in range(layout.tp - 1, 0, -1) if layout.tp % each == 0):
        narrower = replace(layout, tp=tp, dp=layout.dp * layout.tp // tp)
        found[f"ask for tp={tp}"] = replace(problem, layout=narrower)
    return found
