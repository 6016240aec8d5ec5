"""Who a run is: run key, generation, attempt. Pure; the journal and every engine job are named from these."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import NewType

RunKey = NewType("RunKey", str)
"""Short legal name of one run (DNS label, at most 32 characters): ``ls-`` and 20 base-32 characters."""

NodeId = NewType("NodeId", str)


def derive_run_key(
    *,
    deployment_id: str,
    dag_id: str,
    run_id: str,
    run_after: str,
    task_group_id: str,
    map_index: int,
) -> RunKey:
    """Hash who the run is to a name legal on every engine.

    ``run_after`` (ISO 8601, fixed at creation, unchanged by a clear) keeps a run that was deleted and created again
    under the same id from finding the old journal. 100 bits: a collision among a million runs has odds of about 1e-18.
    """
    parts = [deployment_id, dag_id, run_id, run_after, task_group_id, map_index]
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return RunKey("ls-" + base64.b32encode(digest)[:20].decode().lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptKey:
    """One launch: a clear starts a new ``generation``, a relaunch a new ``attempt`` (from 1 in each generation)."""

    run: RunKey
    generation: int
    attempt: int

    @property
    def name(self) -> str:
        """Legal name of the engine's job, unique per launch."""
        return f"{self.run}-g{self.generation}-a{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseKey:
    """One ``rental``, counted from 1 in each ``generation`` of a run, whether or not anything comes of it.

    Rentals are not launches: one lease may serve several launches.
    """

    run: RunKey
    generation: int
    rental: int

    @property
    def name(self) -> str:
        """Legal name of what a cloud keeps for it, unique per rental (at most 48 characters)."""
        return f"{self.run}-g{self.generation}-r{self.rental}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Whose a gang or a lease is, as it says itself: that holds when every record of it is gone, or was never ours.

    ``run`` is the run it serves; an evaluation's gang has a key of its own beside. ``dag_id`` and ``run_id`` are empty
    where no DAG run asked for it.
    """

    deployment_id: str
    run: RunKey
    dag_id: str = ""
    run_id: str = ""
