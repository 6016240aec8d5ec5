"""Checks of a node's network cards, by what the kernel says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_llmsched.trainers.preflight.words import bad, ok, skipped

INFINIBAND = Path("/sys/class/infiniband")
"""Where the kernel lists cards that can do RDMA: InfiniBand, RoCE and EFA alike."""


def check_cards(*, num_nics: int, root: Path = INFINIBAND) -> dict[str, Any]:
    """Check that as many RDMA cards as the node is known to have are up; 0: it is not known how many."""
    name = "network_cards"
    states = {port.parts[-3]: _state(port) for port in sorted(root.glob("*/ports/*"))}
    up = [card for card, state in states.items() if state == "ACTIVE"]
    down = ", ".join(f"{card} is {state}" for card, state in states.items() if state != "ACTIVE")
    if not num_nics:
        if not states:
            return skipped(name, "no RDMA card is expected, and there is none")
        return ok(name, down, value=len(up), unit="cards")
    if len(up) < num_nics:
        detail = f"{len(up)} of {num_nics} RDMA cards are up{': ' * bool(down)}{down}"
        return bad(name, detail, value=len(up), unit="cards")
    return ok(name, value=len(up), unit="cards")


def _state(port: Path) -> str:
    """Return a port's state, of which the kernel writes ``4: ACTIVE``."""
    try:
        return (port / "state").read_text().partition(":")[2].strip() or "UNKNOWN"
    except OSError as error:
        return f"unreadable ({error.strerror})"
