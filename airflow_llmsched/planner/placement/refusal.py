"""Says why a gang has no placement, and the smallest change that would give it one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from airflow_llmsched.domain.layout import PlacementWish
from airflow_llmsched.domain.placement import NotPlaced, PlacementProblem
from airflow_llmsched.planner.placement.feasible import NodeTable, largest_gang, refusal_reasons


def refuse(problem: PlacementProblem, table: NodeTable) -> NotPlaced:
    """Return the refusal of a problem that has no solution, with its nodes counted by what keeps them from helping."""
    world_size, level = problem.layout.world_size, problem.required_level
    fit = largest_gang(table, level)
    where = f"in one {level}" if level else "in the fleet"
    return NotPlaced(
        summary=f"cannot place a gang of {world_size} ranks: {fit} fit {where}",
        reasons=refusal_reasons(problem),
        relaxation=_relaxation(problem, table, fit),
    )


def refuse_wishes(problem: PlacementProblem, *, fits: Callable[[PlacementProblem], bool]) -> NotPlaced:
    """Return the refusal of a gang that has room, though nowhere with its groups inside the levels required of them.

    The smallest change of one wish with which the gang ``fits`` is proposed: a wider level, else none; where no such
    change is enough, that all wishes are dropped.
    """
    table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
    required = [wish for wish in problem.wishes if wish.required]
    enough = (words for words, changed in _easier(problem, required, table.levels) if fits(changed))
    wanted = " and ".join(f"each {wish.group} group in one {wish.level}" for wish in required)
    return NotPlaced(
        summary=f"cannot place a gang of {problem.layout.world_size} ranks with {wanted}: {largest_gang(table, None)} "
        "fit in the fleet, but not so",
        reasons=refusal_reasons(problem),
        relaxation=next(enough, "do not require the levels required of groups"),
    )


def _easier(
    problem: PlacementProblem, required: Sequence[PlacementWish], levels: Sequence[str]
) -> Iterator[tuple[str, PlacementProblem]]:
    """Yield what may be proposed and the problem it then is, the smallest change first: levels wider by one, by two."""
    for steps in range(1, len(levels)):
        for wish in required:
            depth = levels.index(wish.level) - steps
            if depth >= 0:
                words = f"allow level {levels[depth]!r} instead of {wish.level!r} for {wish.group} groups"
                yield words, _with(problem, wish, replace(wish, level=levels[depth]))
    for wish in required:
        yield f"do not require level {wish.level!r} of {wish.group} groups", _with(problem, wish, None)


def _with(problem: PlacementProblem, wish: PlacementWish, changed: PlacementWish | None) -> PlacementProblem:
    wishes = (changed if each == wish else each for each in problem.wishes)
    return replace(problem, wishes=tuple(each for each in wishes if each is not None))


def _relaxation(problem: PlacementProblem, table: NodeTable, fit: int) -> str | None:
    """Return the smallest change that would fit.

    A wider level, else the excluded nodes, else fewer ranks; where not even one group fits, several of these, or
    narrower groups.
    """
    wider = _wider_level(problem, table)
    if wider is not None:
        return wider
    admitted = NodeTable.of(problem.tree, group_size=problem.layout.tp)
    if problem.excluded and _fits(problem, admitted, problem.required_level):
        return "admit the excluded nodes"
    if fit:
        return f"ask for at most {fit} ranks"
    if problem.excluded and problem.required_level and _fits(problem, admitted, None):
        return f"admit the excluded nodes and do not require level {problem.required_level!r}"
    return _narrower_groups(problem)


def _wider_level(problem: PlacementProblem, table: NodeTable) -> str | None:
    level = problem.required_level
    if level is None:
        return None
    for wider in reversed(table.levels[: table.depth(level)]):
        if _fits(problem, table, wider):
            return f"allow level {wider!r} instead of {level!r}"
    return f"do not require level {level!r}" if _fits(problem, table, None) else None


def _narrower_groups(problem: PlacementProblem) -> str | None:
    tp = problem.layout.tp
    for narrower in (each for each in range(tp - 1, 0, -1) if tp % each == 0):
        table = NodeTable.of(problem.tree, group_size=narrower, excluded=problem.excluded)
        if _fits(problem, table, problem.required_level):
            return f"ask for tp={narrower}"
    return None


def _fits(problem: PlacementProblem, table: NodeTable, level: str | None) -> bool:
    return largest_gang(table, level) >= problem.layout.world_size
