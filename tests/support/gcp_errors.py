"""How a Google that stands in for the real one says no."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - it is an answer
    """HTTP status and reason of a refused call."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        self.status, self.reason, self.message = status, reason, message or reason
        super().__init__(reason)
