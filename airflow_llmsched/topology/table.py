"""A table of nodes as CSV: the first column names the node, the others its domains, outermost first. Pure.

The first line names the columns; ``ip,DSW,PSW,ASW`` is how Alibaba published the network of its Lingjun cluster.
Columns of certain names (``FACTS``) say what each node is instead.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import NodeTerms, TopologyNode
from airflow_llmsched.topology.reading import (
    Machines,
    Network,
    Oddities,
    Reading,
    bounded,
    num_accelerators,
    quoted,
    refusal,
    tree_of,
)

MAX_COLUMNS = 32

FACTS = ("shape", "slots", "free", "usd_per_hour", "failures_per_hour")
"""Columns that are no level. An empty cell says nothing."""

MAX_NUMBER = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What the first line says: positions of the levels, and of the facts that are there."""

    width: int
    levels: tuple[str, ...]
    level_at: tuple[int, ...]
    fact_at: dict[str, int]


@dataclass(slots=True, kw_only=True)
class _Row:
    """A node as a line says it is."""

    line: int
    path: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def said(self) -> tuple[object, ...]:
        """What must be the same where a node is listed again."""
        return (self.path, self.facts)


def read_table(text: str, *, machines: Machines | None = None) -> Reading:
    """Return the tree of the rows' nodes; ``machines`` says what those are of which no column does.

    Raises ``DataError``.
    """
    odd = Oddities()
    rows = csv.reader(io.StringIO(bounded(text, source="table").removeprefix("\ufeff")), strict=True)
    columns: _Columns | None = None
    found: dict[str, _Row] = {}
    try:
        for cells in ([cell.strip() for cell in row] for row in rows):
            if not any(cells):
                continue
            if columns is None:
                columns = _columns(cells, f"table: line {rows.line_num}")
            else:
                _add(cells, columns, rows.line_num, found, odd)
    except csv.Error as error:
        raise refusal(f"table: line {rows.line_num}", f"is no CSV: {error}", hint="Mend its quotes") from error
    if columns is None or not found:
        raise refusal("table", "lists no node", hint="Write a line of names, and one for each node")
    nodes = [_node(name, row, machines or Machines()) for name, row in found.items()]
    return Reading(tree=tree_of(Network(levels=columns.levels), nodes), warnings=odd.counted())


def _columns(cells: list[str], where: str) -> _Columns:
    level_at = tuple(number for number, cell in enumerate(cells) if number and cell not in FACTS)
    levels = tuple(cells[number] for number in level_at)
    named = cells[1:]
    if len(cells) > MAX_COLUMNS or not levels or not all(named) or len(set(named)) < len(named):
        what = f"must name 2 to {MAX_COLUMNS} columns, each once, separated by commas"
        hint = f"The first is the node's, the others are levels, outermost first, or {', '.join(FACTS)}"
        raise refusal(where, what, hint=hint)
    facts = {cell: number for number, cell in enumerate(cells) if number and cell in FACTS}
    return _Columns(width=len(cells), levels=levels, level_at=level_at, fact_at=facts)


def _add(cells: list[str], columns: _Columns, line: int, found: dict[str, _Row], odd: Oddities) -> None:
    where, name = f"table: line {line}", cells[0]
    if len(cells) != columns.width:
        what = f"has {len(cells)} cells, and the first line has {columns.width}"
        raise refusal(where, what, hint="Write each cell, an empty one where a domain is not known")
    if not name:
        raise refusal(where, "names no node", hint="Name it in the first cell")
    path = [cells[number] for number in columns.level_at]
    odd.note("cell that is empty: the node is alone there", path.count(""))
    facts = {fact: cells[number] for fact, number in columns.fact_at.items() if cells[number]}
    row = _Row(line=line, path=tuple(part or name for part in path), facts=facts)
    if name in found:
        before = found[name]
        if before.said != row.said:
            how = "is elsewhere on" if before.path != row.path else "is something else on"
            raise refusal(where, f"node {quoted(name)} {how} line {before.line}", hint="Keep one of the lines")
        odd.note("node that is listed again, the same")
    found.setdefault(name, row)


def _node(name: str, row: _Row, machines: Machines) -> TopologyNode:
    shape = row.facts.get("shape", machines.shape)
    usual = machines.slots if "shape" not in row.facts else machines.num_slots or num_accelerators(shape) or 1
    slots = int(_number(row, "slots", usual, least=1, whole=True))
    free = int(_number(row, "free", slots, least=0, whole=True))
    if free > slots:
        what = f"has {free} free slots of {slots}"
        raise refusal(f"table: line {row.line}", what, hint="Mend free, or slots")
    price = _number(row, "usd_per_hour", math.nan, least=0)
    terms = NodeTerms(
        usd_per_hour=None if math.isnan(price) else price,
        failures_per_hour=_number(row, "failures_per_hour", 0.0, least=0),
    )
    return TopologyNode(id=NodeId(name), path=row.path, shape=shape, num_slots=slots, num_free_slots=free, terms=terms)


def _number(row: _Row, fact: str, default: float, *, least: float, whole: bool = False) -> float:
    text = row.facts.get(fact)
    if text is None:
        return default
    try:
        value = float(int(text) if whole else text)
    except ValueError:
        value = math.nan
    if not least <= value < MAX_NUMBER:
        kind = "a whole number" if whole else "a number"
        raise refusal(
            f"table: line {row.line}", f"{fact} is {quoted(text)}", hint=f"Write {kind} of at least {least:g}"
        )
    return value
