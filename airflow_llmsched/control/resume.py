"""Which checkpoint a launch resumes from: the newest one that is complete, sound and fits, and why not a newer one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.places import CheckpointPlace, CheckpointPlaces
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, Verdict, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.ports import CheckpointFormat

MAX_SKIPPED_RECORDED = 20


class CheckpointShelf:
    """The checkpoints of all attempts, in all places where they saved. Only those in the run's line count.

    Remembers verdicts, since reading every byte of a checkpoint takes long.
    """

    def __init__(self, checkpoints: CheckpointFormat, places: CheckpointPlaces, depth: VerifyDepth) -> None:
        self._format = checkpoints
        self._places = places
        self._depth = depth
        self._verdicts: dict[CheckpointRef, Verdict] = {}

    def newest_sound(self, line: CheckpointLine) -> tuple[CheckpointRef, Sound] | None:
        """Return the newest checkpoint that can be loaded, whatever the layout. Raises ``CouldNotLookError``."""
        for ref in self._newest_first(line):
            if ref.complete and line.why_not(ref) is None:
                verdict = self.verify(ref)
                if isinstance(verdict, Sound):
                    return ref, verdict
        return None

    def unsound(self, line: CheckpointLine, *, above_step: int) -> tuple[str, ...]:
        """Return what is wrong with each checkpoint newer than ``above_step``. Raises ``CouldNotLookError``."""
        reasons = []
        for ref in self._newest_first(line):
            if ref.step > above_step and line.why_not(ref) is None:
                verdict = self.verify(ref) if ref.complete else Damaged(reason=ref.torn_reason or "incomplete")
                if isinstance(verdict, Damaged):
                    reasons.append(f"{ref.path}: {verdict.reason}")
        return tuple(reasons)

    def choose(
        self,
        layout: ParallelLayout,
        *,
        line: CheckpointLine,
        newest: CheckpointRef | None,
        required: bool,
        at_s: float,
    ) -> ev.CheckpointChosen | ev.CheckpointMissing:
        """Return what a gang with ``layout`` resumes from.

        Step 0 is chosen only when nothing better was ever seen (``newest``) and nothing is ``required``; the note says
        so. Raises ``CouldNotLookError``: storage that cannot be read is never taken for empty.
        """
        skipped: list[ev.SkippedCheckpoint] = []
        for ref in self._newest_first(line):
            reason = line.why_not(ref) or self._why_not(ref, layout)
            if reason is None:
                return ev.CheckpointChosen(at_s=at_s, checkpoint=ref, skipped=tuple(skipped), note=_note(ref, skipped))
            if len(skipped) < MAX_SKIPPED_RECORDED:
                skipped.append(ev.SkippedCheckpoint(step=ref.step, path=ref.path, reason=reason))
        return self._none(newest, required, tuple(skipped), at_s)

    def _none(
        self, newest: CheckpointRef | None, required: bool, skipped: tuple[ev.SkippedCheckpoint, ...], at_s: float
    ) -> ev.CheckpointChosen | ev.CheckpointMissing:
        found = "; ".join(f"{each.path}: {each.reason}" for each in skipped) or f"none below {self._roots()}"
        if newest is not None:
            reason = (
                f"nothing to resume from, although a checkpoint of step {newest.step} had been saved at {newest.path} "
                f"({found}). Restore it, or clear the run to start again from step 0"
            )
            return ev.CheckpointMissing(at_s=at_s, reason=reason, skipped=skipped)
        if required:
            reason = f"checkpoint.require_resume is set and there is no usable checkpoint ({found})"
            return ev.CheckpointMissing(at_s=at_s, reason=reason, skipped=skipped)
        return ev.CheckpointChosen(at_s=at_s, checkpoint=None, skipped=skipped, note=f"starts at step 0: {found}")

    def _why_not(self, ref: CheckpointRef, layout: ParallelLayout) -> str | None:
        if ref.torn_reason is not None:
            return ref.torn_reason
        fits = self._format.can_resume(ref, layout)
        if not fits.ok:
            return fits.reason
        verdict = self.verify(ref)
        return verdict.reason if isinstance(verdict, Damaged) else None

    def verify(self, ref: CheckpointRef, *, anew: bool = False) -> Verdict:
        """Return whether ``ref`` can be loaded; ``anew``: whatever was found before. Raises ``CouldNotLookError``."""
        if anew or ref not in self._verdicts:
            self._verdicts[ref] = self._format.verify(ref, depth=self._depth)
        return self._verdicts[ref]

    def _newest_first(self, line: CheckpointLine) -> Iterator[CheckpointRef]:
        """Yield checkpoints, highest step first.

        Where the last launch saves comes first, as far as it is no older than what that went on from: no other place
        has anything newer of the run's line, and may be away by now. All places are asked for the rest, and must
        answer once anything was launched.
        """
        last = line.takeovers[-1] if line.takeovers else None
        place = self._places.at(line.root) if line.root else None
        if len(self._places.all) == 1:
            yield from self._scan(self._places.all[0])
            return
        seen: set[str] = set()
        for ref in self._scan(place) if place is not None and last is not None else ():
            if ref.step < (last.step if last else 0):
                break
            seen.add(ref.path)
            yield ref
        found: list[CheckpointRef] = []
        for each in self._places.all:
            try:
                found += self._scan(each)
            except CouldNotLookError:
                if last is not None:
                    raise
        yield from sorted((ref for ref in found if ref.path not in seen), key=_newest_last, reverse=True)

    def _scan(self, place: CheckpointPlace) -> Iterator[CheckpointRef]:
        must_be_mounted(place)
        yield from self._format.scan(place.root)

    def _roots(self) -> str:
        return " or ".join(place.root for place in self._places.all)


def must_be_mounted(place: CheckpointPlace) -> None:
    """Raise ``CouldNotLookError`` where a storage is away: its folder is then empty, and of another file system."""
    if place.mount and not Path(place.mount).is_dir():
        raise CouldNotLookError(f"storage {place.storage} is not mounted at {place.mount}: what it holds is unknown")


def _newest_last(ref: CheckpointRef) -> tuple[int, bool, tuple[int, int]]:
    by = ref.saved_by
    return ref.step, ref.complete, (by.generation, by.attempt) if by else (0, 0)


def _note(ref: CheckpointRef, skipped: list[ev.SkippedCheckpoint]) -> str:
    if not skipped:
        return ""
    passed = "; ".join(f"step {each.step}: {each.reason}" for each in skipped)
    return f"resumes at step {ref.step}, passing over newer checkpoints ({passed})"
