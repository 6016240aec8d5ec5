"""A rank of the crash harness: steps, saves and resumes, and leaves evidence of its own that no one else writes.

Run as a script. Every line of the evidence is one write to a file shared by all gangs of a run, so the file has the
order in which things happened. A lock that the kernel holds for as long as the rank lives shows a second gang.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from airflow_llmsched import agent
from airflow_llmsched.agent.seal import seal
from tests.support.checkpoint_files import save_dcp

NUM_RANKS = 2
NUM_STEPS = 16
INTERVAL_STEPS = 4
STEP_S = 0.02
FAILS_AT_STEP = 10
HOLDS_FROM_STEP = 6


class Evidence:
    """What this rank did, for the harness to read."""

    def __init__(self, root: Path, layout: agent.RankLayout) -> None:
        self._layout = layout
        self._fd = os.open(root / "evidence.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = os.open(root / f"rank-{layout.rank}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.note("overlap")

    def note(self, what: str, **more: object) -> None:
        record = {"what": what, "attempt": os.environ["LLMSCHED_ATTEMPT_NAME"], "rank": self._layout.rank, **more}
        os.write(self._fd, json.dumps(record).encode() + b"\n")


def main() -> int:
    root, fails = Path(sys.argv[1]), sys.argv[2] == "fails"
    layout = agent.layout()
    evidence = Evidence(root, layout)
    step = int(Path(layout.resume_from).name.removeprefix("step-")) if layout.resume_from else 0
    evidence.note("start", resumed=step)
    agent.ready()
    while step < NUM_STEPS:
        step += 1
        time.sleep(STEP_S)
        evidence.note("step", step=step)
        agent.report(step=step, loss=1.0, tokens=8)
        if step >= HOLDS_FROM_STEP:
            hold(root)
        leaving = agent.stop_requested()
        if layout.rank == 0 and (step % INTERVAL_STEPS == 0 or step == NUM_STEPS or leaving):
            save(step, layout)
            evidence.note("saved", step=step)
        if leaving:
            break
        if fails and layout.rank == layout.world_size - 1 and step == FAILS_AT_STEP and not (root / "failed").exists():
            (root / "failed").touch()
            evidence.note("fails")
            return 3
    evidence.note("done", step=step)
    return 0


def hold(root: Path) -> None:
    """Stand still, healthy, while there is a file ``hold``."""
    while (root / "hold").exists() and not agent.stop_requested():
        agent.heartbeat()
        time.sleep(STEP_S)


def save(step: int, layout: agent.RankLayout) -> None:
    path = Path(layout.checkpoint_root or "") / f"step-{step:08d}"
    with agent.saving(step=step):
        save_dcp(path, num_ranks=layout.world_size)
        seal(path, step=step, world_size=layout.world_size)
    agent.checkpoint_saved(step=step, path=str(path))


if __name__ == "__main__":
    sys.exit(main())
