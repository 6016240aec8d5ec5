"""Slurm's short form of node names, such as ``gpu[001-016,020],login2``: written out, and folded again. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_NAMES = 65_536
"""Most names one list may stand for: as many as Slurm lets one range hold (MAX_RANGE of its hostlist)."""

_MAX_TEXT = 4 * 1024 * 1024
_NONE = frozenset(("", "(null)", "None", "None assigned", "N/A"))
_PART = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_LITERAL = re.compile(r"[A-Za-z0-9._:+\-]*")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,15})")


def expand(text: str, *, max_names: int = MAX_NAMES) -> tuple[str, ...]:
    """Return the names that ``text`` stands for, in its order; none for ``(null)`` and its like.

    Raises ``ValueError`` for what is no node list, or stands for more than ``max_names``.
    """
    text = text.strip()
    if text in _NONE:
        return ()
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a node list of {len(text)} characters is longer than {_MAX_TEXT}: {text[:80]!r}...")
    names: list[str] = []
    for item in _items(text):
        pieces = _pieces(item, text)
        count = math.prod(len(piece) for piece in pieces)
        if len(names) + count > max_names:
            raise ValueError(f"node list {_shown(text)} stands for more than {max_names} nodes")
        names += map("".join, itertools.product(*(piece.texts() for piece in pieces)))
    return tuple(names)


def compress(names: Sequence[str]) -> str:
    """Return a short list that stands for ``names`` in their order. Raises ``ValueError`` for what no node is called.

    Neighbours that differ in the number at their end alone share a bracket: in a name that goes on behind its last
    number Slurm 22.05 takes none, though it may show one.
    """
    items: list[str] = []
    for (prefix, has_number), group in itertools.groupby(map(_split, names), key=_alike):
        numbers = [number for _, number in group]
        if not has_number or len(numbers) == 1:
            items += [prefix + number for number in numbers]
        else:
            items.append(f"{prefix}[{','.join(_ranges(numbers))}]")
    return ",".join(items)


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers ``low`` to ``high``, written with at least ``width`` digits."""

    low: int
    high: int
    width: int

    def __len__(self) -> int:
        return self.high - self.low + 1

    def texts(self) -> Iterator[str]:
        return (str(number).zfill(self.width) for number in range(self.low, self.high + 1))


@dataclass(frozen=True, slots=True)
class _Piece:
    """What may stand at one place of a name: a text, or each number of some ranges."""

    ranges: tuple[_Range, ...] = ()
    literal: str = ""

    def __len__(self) -> int:
        return sum(map(len, self.ranges)) if self.ranges else 1

    def texts(self) -> Iterator[str]:
        if not self.ranges:
            return iter((self.literal,))
        return itertools.chain.from_iterable(each.texts() for each in self.ranges)


def _items(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are outside of brackets."""
    start, is_inside = 0, False
    for at, letter in enumerate(text):
        if letter in "[]":
            if is_inside == (letter == "["):
                raise ValueError(f"node list {_shown(text)} has a {letter!r} too many at character {at + 1}")
            is_inside = letter == "["
        if letter == "," and not is_inside:
            yield text[start:at]
            start = at + 1
    if is_inside:
        raise ValueError(f"node list {_shown(text)} has a bracket that never ends: was it cut off?")
    yield text[start:]


def _pieces(item: str, text: str) -> list[_Piece]:
    pieces = []
    for index, part in enumerate(re.split(r"[\[\]]", item)):
        if index % 2:
            pieces.append(_Piece(ranges=tuple(_range(each, text) for each in part.split(","))))
        elif _LITERAL.fullmatch(part):
            pieces.append(_Piece(literal=part))
        else:
            raise ValueError(f"node list {_shown(text)} has {part!r} in it, which is in no node's name")
    if not item:
        raise ValueError(f"node list {_shown(text)} has an empty name in it")
    return pieces


def _range(part: str, text: str) -> _Range:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(f"node list {_shown(text)} has {part!r} where a number or a range should be")
    low, high = found[1], found[2] or found[1]
    if int(high) < int(low):
        raise ValueError(f"node list {_shown(text)} has a range that runs backwards: {part}")
    if high.startswith("0") and len(high) != len(low):
        raise ValueError(f"node list {_shown(text)} has a range whose ends are padded differently: {part}")
    return _Range(int(low), int(high), len(low))


def _split(name: str) -> tuple[str, str]:
    """Return a name's beginning, and the number at its end as it is written; an empty one where there is none."""
    if not name or not _LITERAL.fullmatch(name):
        raise ValueError(f"{name!r} is no node's name")
    found = _LAST_NUMBER.fullmatch(name)
    return (name, "") if found is None else (found[1], found[2])


def _alike(parts: tuple[str, str]) -> tuple[str, bool]:
    prefix, number = parts
    return prefix, bool(number)


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    """Yield the numbers as ranges, in their order; each range is read back exactly as it was written."""
    low = high = numbers[0]
    for number in numbers[1:]:
        if str(int(high) + 1).zfill(len(low)) == number:
            high = number
            continue
        yield low if low == high else f"{low}-{high}"
        low = high = number
    yield low if low == high else f"{low}-{high}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")
