"""Which checkpoints a run can still go on from, once attempts that were taken for dead may save late. Pure.

Launches decide, not clocks: whoever is launched from a checkpoint gives up all that earlier attempts saved above it,
or still will. What remains is one line of descent, of which every launch takes the highest step. A clock could not
tell: a save's time is that of a node which may be exactly the one nobody can reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy

MAX_TAKEOVERS = 256
"""Takeovers remembered. What attempts before the oldest of them saved is kept by nobody any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """The attempt ``by`` went on from ``step`` (0: from the start)."""

    by: SavedBy
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """The run's line of descent, all generations, as far as it bounds what counts.

    ``takeovers`` are ordered by attempt, and their steps rise: a later one that went further back makes those before it
    needless. ``shared_until`` is the last attempt that saved in the root itself, None when none has: what lies there
    then was put there by someone, and counts. ``root`` is the folder below which the last attempt saves, as control
    sees it; empty before the first, and where all attempts save below one.
    """

    takeovers: tuple[Takeover, ...] = ()
    shared_until: SavedBy | None = None
    root: str = ""

    def launched(self, by: SavedBy, *, step: int, own_folder: bool, root: str = "") -> CheckpointLine:
        """Return the line once ``by`` is to go on from ``step``, saving in a folder of its own or in the root."""
        before = tuple(each for each in self.takeovers if each.step < step)
        return CheckpointLine(
            takeovers=(*before, Takeover(by=by, step=step))[-MAX_TAKEOVERS:],
            shared_until=self.shared_until if own_folder else by,
            root=root,
        )

    def why_not(self, ref: CheckpointRef) -> str | None:
        """Return why the run does not go on from ``ref``, None when it is on the line."""
        saver = ref.saved_by or self.shared_until
        if saver is None:
            return None
        bound = next((each for each in self.takeovers if each.by > saver), None)
        if bound is None or ref.step <= bound.step:
            return None
        return f"not in the run's line: {bound.by.folder} took over from {saver.folder} at step {bound.step}"
