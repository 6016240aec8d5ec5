"""Names for the places where something outside of this process changes, so that a crash harness can shoot it there.

Every module that changes durable or outside state for a run makes an :class:`EffectPoint` for each such change, and
wraps the change in it. ``tests/arch/test_effect_points.py`` finds changes that nobody wrapped. In production nobody
listens, and a point costs one comparison.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Side(enum.StrEnum):
    """Where a process stands: the effect has not begun, or it is done."""

    BEFORE = "before"
    AFTER = "after"


Listener = Callable[[str, Side], None]
"""Told the point's name on both sides; on the far one only if the effect raised nothing. May be told by any thread."""

_names: set[str] = set()
_listener: Listener | None = None


class EffectPoint:
    """One effect, wrapped as ``with POINT:`` or ``@POINT``. Made once, at module level, with a name of its own.

    Raises ``ValueError`` when the name is taken: two effects that share one could not be told apart.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if name in _names:
            raise ValueError(f"there is already an effect point {name!r}: choose another name for this one")
        _names.add(name)
        self.name = name

    def __call__(self, effect: Callable[P, T]) -> Callable[P, T]:
        """Return ``effect`` as wrapped by this point."""

        @functools.wraps(effect)
        def marked(*args: P.args, **kwargs: P.kwargs) -> T:
            if _listener is None:
                return effect(*args, **kwargs)
            with self:
                return effect(*args, **kwargs)

        return marked

    def __enter__(self) -> None:
        if _listener is not None:
            _listener(self.name, Side.BEFORE)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if _listener is not None and kind is None:
            _listener(self.name, Side.AFTER)


def listen(listener: Listener | None) -> None:
    """Have ``listener`` told of every effect of this process from now on, instead of whoever was; None: nobody.

    What it raises goes through the effect's caller, as if the effect had failed so.
    """
    global _listener  # noqa: PLW0603  (one per process, as a crash is)
    _listener = listener


def points() -> frozenset[str]:
    """Return the names of all points of the modules imported so far."""
    return frozenset(_names)
