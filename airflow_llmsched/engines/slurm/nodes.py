"""A node as Slurm tells it, and why it must not be used, if so. Pure. Words are those of "Node State Codes" (24.11)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.engines.slurm.records import number_of, pairs

_SYMBOLS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "!": "POWER_DOWN"}
_SYMBOLS |= {"$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}

USABLE = frozenset(
    (
        "ALLOCATED",
        "BLOCKED",
        "CLOUD",
        "COMPLETING",
        "DYNAMIC_NORM",
        "IDLE",
        "MIXED",
        "PLANNED",
        "POWERED_DOWN",
        "POWERING_UP",
        "REBOOT_CANCELED",
    )
)
"""Words of nodes that jobs are placed on, now or once they have booted. Every other word keeps a gang away."""

_IN_RESERVATION = frozenset(("MAINT", "MAINTENANCE", "RESERVED", "RES"))
_TAKEN = frozenset(("ALLOCATED", "MIXED", "COMPLETING"))
_NEVER = ("None", "Unknown", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node. ``states`` are its state and flags; ``gres`` and ``used`` as Slurm writes them.

    ``has_reported`` is whether the controller has heard from it since the controller began.
    """

    name: str
    address: str
    states: tuple[str, ...]
    reason: str = ""
    gres: str = ""
    used: str = ""
    partitions: tuple[str, ...] = ()
    has_reported: bool = True

    @property
    def is_taken(self) -> bool:
        """Whether any job runs on it."""
        return not _TAKEN.isdisjoint(self.states)

    @property
    def in_use(self) -> str:
        """What jobs have of ``gres``, in the same form.

        A controller that was restarted does not count the ends of jobs on a node that has yet to report to it, which
        takes seconds: ``used`` is then what they had, though no job is left there.
        """
        return self.used if self.has_reported or self.is_taken else ""

    def unusable_reason(self, *, has_reservation: bool) -> str | None:
        """Return why no rank may be placed here, None when one may."""
        allowed = USABLE | _IN_RESERVATION if has_reservation else USABLE
        bad = [word for word in self.states if word not in allowed]
        if not bad:
            return None
        said = "+".join(self.states).lower()
        return f"{said}: {self.reason}" if self.reason else said


def from_scontrol_node(line: str) -> NodeRecord:
    """Return what one line of ``scontrol --oneliner --details show node`` says. Raises ``ValueError``."""
    said = pairs(line)
    if "NodeName" not in said:
        raise ValueError(f"scontrol printed a node that was not asked for: {line[:200]!r}")
    return NodeRecord(
        name=said["NodeName"],
        address=said.get("NodeAddr") or said["NodeName"],
        states=_states(said.get("State", "").split("+")),
        reason=_word(said.get("Reason", "")),
        gres=said.get("Gres", ""),
        used=said.get("GresUsed", ""),
        partitions=tuple(filter(None, said.get("Partitions", "").split(","))),
        has_reported=said.get("SlurmdStartTime") not in _NEVER,
    )


def from_rest_node(node: Mapping[str, Any]) -> NodeRecord:
    """Return what slurmrestd says of a node; up to 0.0.38 a state is one word beside a list of flags."""
    state = node["state"]
    words = [state, *node.get("state_flags", ())] if isinstance(state, str) else list(state)
    partitions = node.get("partitions") or ()
    return NodeRecord(
        name=str(node["name"]),
        address=str(node.get("address") or node["name"]),
        states=_states(words),
        reason=_word(str(node.get("reason") or "")),
        gres=str(node.get("gres") or ""),
        used=str(node.get("gres_used") or ""),
        partitions=tuple(partitions.split(",") if isinstance(partitions, str) else partitions),
        has_reported="slurmd_start_time" not in node or bool(number_of(node["slurmd_start_time"])),
    )


def _states(words: Sequence[str]) -> tuple[str, ...]:
    """Return words without the symbols that some clients hang behind them, and what the symbols mean."""
    found: dict[str, None] = {}
    for text in words:
        for word in text.split("+"):
            bare = re.fullmatch(r"([A-Za-z_]+)([*~#%!$@^\-]*)", word.strip())
            if bare is None:
                raise ValueError(f"Slurm says that a node is {text[:60]!r}, which is not understood")
            found |= dict.fromkeys((bare[1].upper(), *(_SYMBOLS[symbol] for symbol in bare[2])))
    return tuple(found)


def _word(text: str) -> str:
    return "" if text in ("none", "None", "(null)", "N/A") else text
