"""A trainer without PyTorch: takes steps, saves checkpoints in DCP's form, resumes, and fails when told to.

Run as a script by the ranks of a gang; every rank steps by itself and rank 0 saves. Evaluates with ``--evaluate``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from airflow_llmsched import agent
from airflow_llmsched.agent.seal import seal
from tests.support.checkpoint_files import save_dcp


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--exit-code", type=int, default=3)
    parser.add_argument("--hold-at", type=int, default=0, help="step after which to wait for --hold to appear")
    parser.add_argument("--hold", type=Path)
    parser.add_argument("--hears-notices", action="store_true", help="save when told that the node will be taken")
    parser.add_argument("--tell", default="", help="variable whose value to show before failing")
    parser.add_argument("--loss", type=float)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    if options.hears_notices:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a cluster that tracks processes without cgroups tells ranks too
    return evaluate(options) if options.evaluate else train(options)


def train(options: argparse.Namespace) -> int:
    layout = agent.layout()
    first = int(Path(layout.resume_from).name.removeprefix("step-")) if layout.resume_from else 0
    agent.ready()
    for step in range(first + 1, options.steps + 1):
        time.sleep(options.step_s)  # the work
        agent.report(step=step, loss=5.0 - step / 100, tokens=8)
        if options.hold is not None and step == options.hold_at and step > 0:
            wait_for(options.hold, until_told=options.hears_notices)
        is_mended = options.hold is not None and options.hold.exists()
        if step == options.fail_at and layout.rank == layout.world_size - 1 and not is_mended:
            wait_for_checkpoint((step - 1) // options.interval * options.interval, layout, first=first)
            if options.tell:
                sys.stderr.write(f"{options.tell} is {os.environ[options.tell]}\n")
            sys.stderr.write(f"giving up at step {step}\n")
            return options.exit_code
        leaving = agent.stop_requested()
        is_told = options.hears_notices and agent.checkpoint_requested()
        if layout.rank == 0 and (step % options.interval == 0 or step == options.steps or leaving or is_told):
            save(step, layout)
        if is_told:
            wait_for(options.hold)
        if leaving:
            break
    return 0


def wait_for(path: Path, *, until_told: bool = False) -> None:
    """Stand still, healthy, until ``path`` exists or the gang is asked to leave; or, ``until_told``, to save."""
    while not path.exists() and not agent.stop_requested() and not (until_told and agent.checkpoint_requested()):
        agent.heartbeat()
        time.sleep(0.05)


def wait_for_checkpoint(step: int, layout: agent.RankLayout, *, first: int) -> None:
    """Wait until rank 0 has saved ``step``: what a failing gang leaves behind must not be a matter of timing.

    What was saved up to step ``first`` was saved by an earlier attempt.
    """
    sealed = Path(layout.checkpoint_root or "") / f"step-{step:08d}" / "llmsched-seal.json"
    give_up_s = time.monotonic() + 30
    while step > first and not sealed.exists() and time.monotonic() < give_up_s:
        time.sleep(0.01)


def save(step: int, layout: agent.RankLayout) -> None:
    path = Path(layout.checkpoint_root) / f"step-{step:08d}"
    with agent.saving(step=step):
        save_dcp(path, num_ranks=layout.world_size)
        seal(path, step=step, world_size=layout.world_size)
    agent.checkpoint_saved(step=step, path=str(path))


def evaluate(options: argparse.Namespace) -> int:
    step = int(Path(os.environ["LLMSCHED_CHECKPOINT"]).name.removeprefix("step-"))
    loss = options.loss if options.loss is not None else 5.0 - step / 100
    result = {"loss": loss, "checkpoint_step": step, "num_tokens": 64}
    Path(os.environ["LLMSCHED_OUTPUT"]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
