"""The presigned URLs that one node was given: for its next reports, and for what comes down to it. Pure.

They are secrets. Nothing here, and no error, ever shows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_SCHEMES = ("http://", "https://")
_DOWN = ("lease", "orders", "revoked", "renewal")


class Grant(NamedTuple):
    """URLs by what they are for. ``up`` are those of reports ``first_seq``, ``first_seq`` + 1, ..."""

    first_seq: int
    up: tuple[str, ...]
    down: Mapping[str, str]
    issued_at_s: float
    expires_at_s: float

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Grant:
        """Read the form that control writes. Raises ``ValueError``, which shows no URL."""
        try:
            grant = cls(
                first_seq=int(plain["first_seq"]),
                up=tuple(plain["up"]),
                down={name: plain["down"][name] for name in _DOWN},
                issued_at_s=float(plain["issued_at_s"]),
                expires_at_s=float(plain["expires_at_s"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the grant of URLs is damaged ({type(error).__name__})") from None
        if not all(isinstance(url, str) and url.startswith(_SCHEMES) for url in (*grant.up, *grant.down.values())):
            raise ValueError("the grant of URLs holds something that is no http or https URL")
        return grant

    def url_of(self, seq: int) -> str | None:
        """Return where report ``seq`` goes, None when this grant has no place for it."""
        index = seq - self.first_seq
        return self.up[index] if 0 <= index < len(self.up) else None

    def num_left(self, seq: int) -> int:
        """Return how many reports from ``seq`` on it has places for."""
        return max(0, self.first_seq + len(self.up) - max(seq, self.first_seq))

    def is_due(self, seq: int, *, now_s: float) -> bool:
        """Whether to look for the next grant: half of the places or half of the time is used up."""
        half_time_s = (self.issued_at_s + self.expires_at_s) / 2
        return 2 * self.num_left(seq) <= len(self.up) or now_s >= half_time_s

    def pace(self, seq: int) -> float:
        """Return by how much to stretch the interval before report ``seq``: doubled each time half of the rest is used.

        So a node whose control is away for hours reports ever more seldom, and never quite runs out.
        """
        left = self.num_left(seq)
        return 2.0 ** max(0, (len(self.up) // max(1, left)).bit_length() - 1)
