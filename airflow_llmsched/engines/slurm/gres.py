"""Generic resources as Slurm writes them: ``gpu:h100:8(S:0-1)``, and which of them are in use. Pure.

Forms are those of ``scontrol show node`` (Gres, GresUsed) and of slurm.conf(5): a name, maybe a type, maybe
``no_consume``, a count that may end in K, M, G, T or P, and notes in brackets (sockets, indexes, counts).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_llmsched.topology.nodelist import expand

_FORM = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_]*)"
    r"(?::(?P<kind>\(null\)|(?![0-9]+[KMGTP]?(?:\(|$))(?!no_consume)[A-Za-z0-9_.\-]+))?"
    r"(?::no_consume)?"
    r"(?::(?P<count>[0-9]{1,12})(?P<unit>[KMGTP]?))?"
    r"(?P<notes>(?:\([A-Za-z]+:[^()]*\))*)"
)
_IDX = re.compile(r"\(IDX:([^()]*)\)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_NONE = ("", "(null)", "N/A")
_MAX_SLOTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Gres:
    """Some of one kind of resource. ``indexes`` are which ones, None where that is not said."""

    name: str
    kind: str
    count: int
    indexes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """A node's accelerators. ``free`` names the free ones, None where Slurm only counts them."""

    num: int
    num_free: int
    free: tuple[int, ...] | None = None


def parse(text: str) -> tuple[Gres, ...]:
    """Return what ``text`` lists; nothing for ``(null)``. Raises ``ValueError`` for what is no such list."""
    if text.strip() in _NONE:
        return ()
    return tuple(_one(item, text) for item in _items(text.strip()))


def slots_of(gres: str, used: str, *, wanted: str) -> Slots:
    """Return the slots of a node that has ``gres`` of which ``used`` is in use; a slot is one ``wanted``.

    ``wanted`` is a name (``gpu``: of any type) or a name and a type (``gpu:h100``). Raises ``ValueError``.
    """
    name, _, kind = wanted.partition(":")
    has = [each for each in parse(gres) if each.name == name]
    mine = [each for each in has if kind in ("", each.kind)]
    taken = [each for each in parse(used) if each.name == name and kind in ("", each.kind)]
    num = sum(each.count for each in mine)
    if num > _MAX_SLOTS:
        raise ValueError(
            f"a node with {num} slots ({gres[:80]!r}) is more than {_MAX_SLOTS}: is {wanted} what ranks use?"
        )
    num_free = max(0, num - sum(each.count for each in taken))
    if len(mine) != len(has):
        return Slots(num=num, num_free=num_free)  # indexes count over all types of the name, so they say nothing here
    return Slots(num=num, num_free=num_free, free=_free(num, num_free, taken))


def _free(num: int, num_free: int, taken: list[Gres]) -> tuple[int, ...] | None:
    if any(each.indexes is None and each.count for each in taken):
        return None
    busy = {index for each in taken for index in each.indexes or ()}
    free = tuple(index for index in range(num) if index not in busy)
    return free if len(free) == num_free else None


def _items(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are outside of brackets."""
    return (item for item in re.split(r",(?![^()]*\))", text))


def _one(item: str, text: str) -> Gres:
    found = _FORM.fullmatch(item)
    if found is None:
        raise ValueError(f"Slurm lists resources as {text[:120]!r}, of which {item[:60]!r} is not understood")
    kind = found["kind"] or ""
    return Gres(
        name=found["name"],
        kind="" if kind == "(null)" else kind,
        count=1 if found["count"] is None else int(found["count"]) * _UNITS[found["unit"]],
        indexes=_indexes(found["notes"]),
    )


def _indexes(notes: str) -> tuple[int, ...] | None:
    found = _IDX.search(notes)
    if found is None:
        return None
    if found[1] in _NONE:
        return ()
    return tuple(int(index) for index in expand(f"[{found[1]}]", max_names=_MAX_SLOTS))
