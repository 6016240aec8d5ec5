"""How closely together 64 ranks on 8 nodes start, and what one node that cannot start leaves of the others.

The nodes are supervisors that share nothing but the network, each with a directory of its own, all on this machine: its
few cores start all 64 processes, which nodes of a real gang would do side by side.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.talking import TalkingGang, python

NUM_NODES = 8
RANKS_PER_NODE = 8
_RUNS_FOR_A_MOMENT = "import time; time.sleep(1.0)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSkew:
    """From the first rank's start to the last one's (median and worst of the tries), and from submit to the last."""

    num_ranks: int
    skew_s: float
    worst_skew_s: float
    submit_to_last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """What was left of the gang, how many ranks had begun anywhere, and how long it took from the submit."""

    num_left: int
    num_begun: int
    ended_after_s: float


def start_skew(*, num_tries: int = 5) -> StartSkew:
    """Start gangs whose ranks all run. Raises ``AssertionError`` unless every rank of each ran."""
    tries = [_try() for _ in range(num_tries)]
    return StartSkew(
        num_ranks=NUM_NODES * RANKS_PER_NODE,
        skew_s=statistics.median(skew_s for skew_s, _ in tries),
        worst_skew_s=max(skew_s for skew_s, _ in tries),
        submit_to_last_s=statistics.median(last_s for _, last_s in tries),
    )


def failed_start() -> FailedStart:
    """Start a gang of whose nodes the last lacks the program. Raises ``AssertionError`` unless all say so."""
    lacking: list[Sequence[str]] = [[] for _ in range(NUM_NODES - 1)]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        gang = TalkingGang(
            Path(folder),
            ["sleep", "1000"],
            num_nodes=NUM_NODES,
            ranks_per_node=RANKS_PER_NODE,
            within=[*lacking, ["env", "PATH=/nonexistent"]],
        )
        try:
            gang.start()
            assert {end["fault"] for end in gang.ends().values()} == {"start_failed"}
            ended_after_s = time.monotonic() - began_s
            return FailedStart(
                num_left=sum(len(gang.processes(node)) for node in gang.nodes),
                num_begun=sum(len(gang.records(node, "start")) for node in gang.nodes),
                ended_after_s=ended_after_s,
            )
        finally:
            gang.close()


def _try() -> tuple[float, float]:
    """Return the skew, and how long after the submit the last rank started (seconds)."""
    submitted_s = time.time()
    with tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        gang = TalkingGang(Path(folder), python(_RUNS_FOR_A_MOMENT), num_nodes=NUM_NODES, ranks_per_node=RANKS_PER_NODE)
        try:
            gang.start()
            assert {end["outcome"] for end in gang.ends().values()} == {"done"}
            starts_s = [record["at_s"] for node in gang.nodes for record in gang.records(node, "start")]
            assert len(starts_s) == NUM_NODES * RANKS_PER_NODE
            return max(starts_s) - min(starts_s), max(starts_s) - submitted_s
        finally:
            gang.close()
