"""Words of the agent for whoever reads a node's logs."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line to standard error, which is the log of whoever started this process."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
