"""A rank of MPI: the sum over all ranks, and what it was told of its place; killed or failing when told so."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
told = json.loads(sys.argv[1])
place = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "LLMSCHED_NODE")}
Path(told["out"], f"{world.rank}.json").write_text(
    json.dumps({"rank": world.rank, "size": world.size, "sum": world.allreduce(world.rank + 1), **place})
)
world.Barrier()
if told.get("hangs"):
    time.sleep(1e6)
if told.get("fails") == world.rank:
    os._exit(7)  # an exit that says goodbye to MPI would wait for the others
world.Barrier()
