"""Regular expressions of somebody else, matched against names without letting one take forever. Pure."""

from __future__ import annotations

import re
import warnings

MAX_PATTERN = 512
MAX_REPEATS = 3
"""Unbounded repeats in one pattern. Names have at most 253 characters, so that these many still end soon."""

_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+?]|\{\d*,?\d*\}|.", re.DOTALL)

_NOT_OF_GO = re.compile(r"\(\?(?:[=!(#>]|<[=!]|P[=>])")


def compiled(pattern: str) -> re.Pattern[str]:
    r"""Return the pattern, to be searched in names as Go does it.

    Repeats of groups that hold repeats or alternatives, such as ``(a+)+``, are refused, as are references back: what is
    left takes no time that explodes. Raises ``ValueError``.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern of {len(pattern)} characters is longer than {MAX_PATTERN}")
    if _NOT_OF_GO.search(pattern):
        raise ValueError(f"{pattern!r} looks around or refers back, as Go's patterns cannot: write it without")
    _check_repeats(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # such as [[:alpha:]], which means something else in Go
            return re.compile(pattern)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from None


def _check_repeats(pattern: str) -> None:
    num_repeats = 0
    varies: list[bool] = [False]
    """Of each open group, whether it may match in several ways; the pattern itself is the first."""
    closed_varies, before = False, ""
    for part in _PART.findall(pattern):
        repeats = part in {"*", "+"} or re.fullmatch(r"\{\d*,\d*\}", part) is not None
        opens, before = before == "(" and part == "?", part
        if opens:  # of a group that says its kind, such as (?:...)
            continue
        if repeats and closed_varies:
            raise ValueError(f"{pattern!r} repeats a group that holds repeats or alternatives: write it without")
        if re.fullmatch(r"\\[1-9]", part):
            raise ValueError(f"{pattern!r} refers back to a group: write it without")
        num_repeats += repeats
        closed_varies = False
        if part == "(":
            varies.append(False)
        elif part == ")" and len(varies) > 1:
            closed_varies = varies.pop()
            varies[-1] |= closed_varies
        elif repeats or part in {"?", "|"}:
            varies[-1] = True
    if num_repeats > MAX_REPEATS:
        raise ValueError(f"{pattern!r} holds {num_repeats} repeats, and at most {MAX_REPEATS} are matched")
