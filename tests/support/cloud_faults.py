"""What may go wrong between an adapter and its cloud, for servers that stand in for clouds and proxies before them."""

from __future__ import annotations

import random
import threading
from enum import Enum, auto


class CloudFault(Enum):
    """What befalls one call."""

    THROTTLED = auto()
    """Refused as one too many; nothing done."""
    FAILED = auto()
    """Answered with an error of the server's own; nothing done."""
    UNHEARD = auto()
    """The connection breaks before the call is read."""
    UNANSWERED = auto()
    """Carried out, and the connection breaks before the answer."""


class CallKind(Enum):
    """What a call does."""

    LOOK = auto()
    CREATE = auto()
    CHANGE = auto()
    REMOVE = auto()


class FaultPlan:
    """Says what befalls each call: faults that were ordered first, then random ones. Asked by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordered: list[tuple[frozenset[CallKind], CloudFault, int]] = []
        self._dark = False
        self._random: random.Random | None = None
        self._rate = 0.0
        self.num_calls = 0

    def order(self, fault: CloudFault, *, num_calls: int, kinds: frozenset[CallKind] = frozenset(CallKind)) -> None:
        """Have ``fault`` befall the next calls of the kinds; 0 calls takes the order back."""
        with self._lock:
            self._ordered = [each for each in self._ordered if each[:2] != (kinds, fault)]
            if num_calls:
                self._ordered.append((kinds, fault, num_calls))

    def go_dark(self, *, is_dark: bool) -> None:
        """Have no call be heard, until light again."""
        with self._lock:
            self._dark = is_dark

    def randomly(self, rate_ratio: float, *, seed: int) -> None:
        """Have a share of all further calls go wrong in some way; 0: none."""
        with self._lock:
            self._random, self._rate = random.Random(seed), rate_ratio

    def next(self, kind: CallKind) -> CloudFault | None:
        """Return what befalls this call; None: nothing."""
        with self._lock:
            self.num_calls += 1
            if self._dark:
                return CloudFault.UNHEARD
            for index, (kinds, fault, num_left) in enumerate(self._ordered):
                if kind in kinds:
                    self._ordered[index] = (kinds, fault, num_left - 1)
                    self._ordered = [each for each in self._ordered if each[2] > 0]
                    return fault
            if self._random is not None and self._random.random() < self._rate:
                return self._random.choice(list(CloudFault))
            return None
