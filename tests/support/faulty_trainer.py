"""A trainer whose delays are known to the second: a late rank, one step that hangs, one save that is slow.

Arguments: a folder both ranks see, and JSON {"wait_s", "hang_s", "save_s"}. Ranks keep in step through files, as a
collective would. Rank 0 writes down when the last rank was ready.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from airflow_llmsched import agent

NUM_STEPS = 30
STEP_S = 0.1


def main() -> None:
    shared, delays = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank = agent.layout().rank
    if rank == 1:
        time.sleep(delays["wait_s"])
    meet(shared, "ready", rank)
    agent.ready()
    if rank == 0:
        (shared / "ready_at").write_text(repr(time.time()))
    for step in range(1, NUM_STEPS + 1):
        time.sleep(STEP_S + (delays["hang_s"] if step == 12 else 0.0))
        meet(shared, f"step-{step}", rank)
        agent.report(step=step, loss=1.0 / step, tokens=64)
        if step % 10 == 0:
            with agent.saving(step=step):
                time.sleep(delays["save_s"] if step == 20 and rank == 1 else 0.0)
            agent.checkpoint_saved(step=step, path=str(shared / f"checkpoint-{step}"))


def meet(shared: Path, name: str, rank: int, world_size: int = 2) -> None:
    """Return when every rank has come."""
    (shared / f"{name}-{rank}").touch()
    while not all((shared / f"{name}-{each}").exists() for each in range(world_size)):
        time.sleep(0.002)


if __name__ == "__main__":
    main()
