"""What depends on a few columns of a table is computed once for each combination of them. Pure.

Most terms of a cost depend on few of a layout's degrees, and a million candidates have a few thousand combinations of
those. Axes: C = candidate layout, U = distinct combination of the columns in question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from airflow_llmsched.planner.layout_table import IntArray, LayoutTable

DENSE_SLOTS = 1 << 20
"""Keys up to here (or up to four times the number of candidates) are counted in an array; larger ones are sorted."""

Scalar = TypeVar("Scalar", bound=np.generic)
Key = tuple[tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """The distinct combinations of some columns of a table.

    ``table`` has these columns only, one row for each combination: any other is an empty array, so that a formula that
    reads a column it did not name fails instead of being wrong. ``first_U`` is the first candidate of each combination,
    for what lies beside the table; ``index_C`` is each candidate's combination.
    """

    table: LayoutTable
    first_U: IntArray
    index_C: IntArray

    def spread(self, values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Give each candidate the value of its combination. The last axis of ``values`` is U and becomes C."""
        return np.take(values, self.index_C, axis=-1)


def factor(table: LayoutTable, columns: Sequence[str], *, beside: Sequence[IntArray] = ()) -> Factor:
    """Return the distinct combinations of ``columns``, in ascending order; found once for each table.

    Args:
        table: The candidates.
        columns: Names of fields of :class:`LayoutTable`.
        beside: More columns, which the table does not have (ranks on a node, say). Read them with ``first_U``.
    """
    key: Key = (tuple(columns), tuple(id(each) for each in beside))
    known = _KNOWN.setdefault(table, _Known())
    if key not in known.factors:
        # The arrays beside the table are kept with the factor: while they live, nothing else can have their ids.
        known.factors[key] = (_factor(table, key[0], beside, known), tuple(beside))
    return known.factors[key][0]


def factored(
    table: LayoutTable, columns: Sequence[str], formula: Callable[[LayoutTable], npt.NDArray[Scalar]]
) -> npt.NDArray[Scalar]:
    """Return ``formula(table)``, computed once for each combination of ``columns``, which are all that it reads."""
    found = factor(table, columns)
    return found.spread(formula(found.table))


def code(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values, ascending, and for each value its index among them.

    What ``np.unique`` does, without sorting where values are small.
    """
    if not values.size:
        return values, values
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    if span > max(DENSE_SLOTS, 4 * values.size):
        distinct, index = np.unique(values, return_inverse=True)
        return distinct, index.ravel()
    offsets = values - lowest if lowest else values
    is_there = np.zeros(span, dtype=np.bool_)
    is_there[offsets] = True
    slots = np.flatnonzero(is_there)
    rank = np.empty(span, dtype=np.int64)
    rank[slots] = np.arange(slots.size)
    return slots + lowest, rank[offsets]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """What was found out about one table: its columns' codes, and combinations of them."""

    codes: dict[str, tuple[int, IntArray]] = field(default_factory=dict)
    factors: dict[Key, tuple[Factor, tuple[IntArray, ...]]] = field(default_factory=dict)

    def code(self, table: LayoutTable, name: str) -> tuple[int, IntArray]:
        """Return how many values a column has, and for each candidate which it is."""
        if name not in self.codes:
            distinct, index_C = code(getattr(table, name))
            self.codes[name] = (distinct.size, index_C)
        return self.codes[name]


def _factor(table: LayoutTable, columns: tuple[str, ...], beside: Sequence[IntArray], known: _Known) -> Factor:
    packed_C, size = np.zeros(len(table), dtype=np.int64), 1
    coded = [known.code(table, name) for name in columns]
    coded += [(distinct.size, index_C) for distinct, index_C in map(code, beside)]
    for num_values, index_C in coded:
        if num_values < 2:
            continue
        if size * num_values > np.iinfo(np.int64).max:
            shorter, packed_C = code(packed_C)
            size = shorter.size
        packed_C = packed_C * num_values + index_C if size > 1 else index_C
        size *= num_values
    distinct, index_C = code(packed_C)
    first_U = np.empty(distinct.size, dtype=np.int64)
    first_U[index_C[::-1]] = np.arange(len(table) - 1, -1, -1)
    nothing = np.zeros(0, dtype=np.int64)
    narrow = {
        each.name: getattr(table, each.name)[first_U] if each.name in columns else nothing for each in fields(table)
    }
    return Factor(table=LayoutTable(**narrow), first_U=first_U, index_C=index_C)


_KNOWN: WeakKeyDictionary[LayoutTable, _Known] = WeakKeyDictionary()
