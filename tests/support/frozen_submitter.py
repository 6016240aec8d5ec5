"""A worker that stops itself (SIGSTOP) where it is about to start a gang on the local engine, until someone wakes it.

``python -m tests.support.frozen_submitter ROOT train|evaluate submit|directory``: ``submit`` is before the engine is
asked, ``directory`` within it, after it has looked and just before the attempt's directory appears. Prints the outcome.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from airflow_llmsched.engines.local.client import LocalClient
from airflow_llmsched.engines.local.engine import LocalEngine
from tests.support.local_house import LocalHouse

OWNER = "try-1"


def freeze_before(owner: type, method: str) -> None:
    """Have every call of ``method`` stand still first."""
    original = getattr(owner, method)

    def frozen(self: Any, *arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return original(self, *arguments, **named)

    setattr(owner, method, frozen)


def main(root: str, purpose: str, point: str) -> None:
    """Start the run, or its evaluation."""
    freeze_before(*{"submit": (LocalEngine, "submit"), "directory": (LocalClient, "create")}[point])
    house = LocalHouse(Path(root))
    worker = house.driver("--step-s", "5", owner=OWNER) if purpose == "train" else house.evaluation()
    sys.stdout.write(f"{worker.start()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
