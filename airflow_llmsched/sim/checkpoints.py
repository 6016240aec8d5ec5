"""Checkpoints of simulated training: saved, torn, damaged and taken for granted like real ones, in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from airflow_llmsched.domain.checkpoint import (
    CheckpointRef,
    Compatibility,
    Damaged,
    SavedBy,
    Sound,
    Verdict,
    VerifyDepth,
)
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.world import SimWorld

_TORN = "no seal: the save did not finish"
_NUM_BYTES = 1 << 20


class SimCheckpoints:
    """``ports.CheckpointFormat`` over a dict. With ``resharding`` off, a checkpoint only fits its own world size."""

    name = "sim"

    def __init__(self, world: SimWorld, *, resharding: bool = True) -> None:
        self._world = world
        self._resharding = resharding
        self._saved: dict[str, CheckpointRef] = {}
        self._damage: dict[str, str] = {}
        self._blind_until_s = float("-inf")

    def scan(self, root: str) -> Iterator[CheckpointRef]:
        """Yield checkpoints below ``root``, highest step first, of one step the later attempt's first."""
        self._look()
        below = [ref for path, ref in self._saved.items() if path.startswith(f"{root}/")]
        return iter(sorted(below, key=_newest_last, reverse=True))

    def verify(self, ref: CheckpointRef, *, depth: VerifyDepth) -> Verdict:
        """Return damage that a look of ``depth`` would find; a listing shows none."""
        self._look()
        known = self._saved.get(ref.path)
        if known is None or not known.complete:
            return Damaged(reason=f"{ref.path}: {_TORN if known else 'gone'}")
        if depth is not VerifyDepth.LISTING and ref.path in self._damage:
            return Damaged(reason=f"{ref.path}: {self._damage[ref.path]}")
        return Sound(depth=depth, num_bytes=_NUM_BYTES, digest=hashlib.sha256(repr(known).encode()).hexdigest())

    def can_resume(self, ref: CheckpointRef, layout: ParallelLayout) -> Compatibility:
        """Say whether ``layout`` can load ``ref``."""
        if self._resharding or ref.world_size == layout.world_size:
            return Compatibility(ok=True, reason="")
        return Compatibility(
            ok=False, reason=f"saved by {ref.world_size} ranks, cannot be loaded by {layout.world_size}"
        )

    def begin_save(self, root: str, *, step: int, world_size: int) -> str:
        """Start writing a checkpoint, torn until :meth:`finish_save`. Returns its path."""
        path = f"{root}/step-{step:08d}"
        self._damage.pop(path, None)
        self._saved[path] = CheckpointRef(
            step=step,
            path=path,
            format=self.name,
            torn_reason=_TORN,
            world_size=world_size,
            saved_by=SavedBy.of_folder(root.rpartition("/")[2]),
        )
        return path

    def finish_save(self, path: str) -> None:
        """Make a checkpoint durable now."""
        self._saved[path] = replace(self._saved[path], torn_reason=None, saved_at_s=self._world.time_s)

    def step_of(self, path: str) -> int | None:
        """Return the step of a loadable checkpoint, None when it cannot be loaded."""
        ref = self._saved.get(path)
        return ref.step if ref is not None and ref.complete and path not in self._damage else None

    def damage(self, path: str, reason: str = "shard 0 does not match its checksum") -> None:
        """Corrupt a checkpoint, in a way that its listing does not show."""
        self._damage[path] = reason

    def copy(self, source: str, target: str) -> int:
        """Have ``target`` hold what ``source`` does; return its bytes. Raises ``CouldNotLookError``."""
        self._look()
        self._saved[target] = replace(self._saved[source], path=target)
        return _NUM_BYTES

    def remove(self, path: str) -> None:
        """Delete a checkpoint."""
        self._saved.pop(path, None)

    def blind(self, *, for_s: float) -> None:
        """Make storage unreadable for a while."""
        self._blind_until_s = self._world.clock.now_s() + for_s

    def _look(self) -> None:
        if self._world.advance() < self._blind_until_s:
            raise CouldNotLookError("simulated storage cannot be read now")


def _newest_last(ref: CheckpointRef) -> tuple[int, bool, tuple[int, int]]:
    by = ref.saved_by
    return ref.step, by is not None, (by.generation, by.attempt) if by else (0, 0)
