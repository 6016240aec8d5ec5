"""Which checkpoint a launch resumes from: the newest one that is complete, sound and fits, and why not a newer one."""

from __future__ import annotations

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, Verdict, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.ports import CheckpointFormat

MAX_SKIPPED_RECORDED = 20


class CheckpointShelf:
    """The checkpoints below one root, of all attempts. Only those in the run's line count.

    Remembers verdicts, since reading every byte of a checkpoint takes long.
    """

    def __init__(self, checkpoints: CheckpointFormat, root: str, depth: VerifyDepth) -> None:
        self._format = checkpoints
        self._root = root
        self._depth = depth
        self._verdicts: dict[CheckpointRef, Verdict] = {}

    def newest_sound(self, line: CheckpointLine) -> tuple[CheckpointRef, Sound] | None:
        """Return the newest checkpoint that can be loaded, whatever the layout. Raises ``CouldNotLookError``."""
        for ref in self._format.scan(self._root):
            if ref.complete and line.why_not(ref) is None:
                verdict = self._verify(ref)
                if isinstance(verdict, Sound):
                    return ref, verdict
        return None

    def unsound(self, line: CheckpointLine, *, above_step: int) -> tuple[str, ...]:
        """Return what is wrong with each checkpoint newer than ``above_step``. Raises ``CouldNotLookError``."""
        reasons = []
        for ref in self._format.scan(self._root):
            if ref.step > above_step and line.why_not(ref) is None:
                verdict = self._verify(ref) if ref.complete else Damaged(reason=ref.torn_reason or "incomplete")
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
        for ref in self._format.scan(self._root):
            reason = line.why_not(ref) or self._why_not(ref, layout)
            if reason is None:
                return ev.CheckpointChosen(at_s=at_s, checkpoint=ref, skipped=tuple(skipped), note=_note(ref, skipped))
            if len(skipped) < MAX_SKIPPED_RECORDED:
                skipped.append(ev.SkippedCheckpoint(step=ref.step, path=ref.path, reason=reason))
        return self._none(newest, required, tuple(skipped), at_s)

    def _none(
        self, newest: CheckpointRef | None, required: bool, skipped: tuple[ev.SkippedCheckpoint, ...], at_s: float
    ) -> ev.CheckpointChosen | ev.CheckpointMissing:
        found = "; ".join(f"{each.path}: {each.reason}" for each in skipped) or f"none below {self._root}"
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
        verdict = self._verify(ref)
        return verdict.reason if isinstance(verdict, Damaged) else None

    def _verify(self, ref: CheckpointRef) -> Verdict:
        if ref not in self._verdicts:
            self._verdicts[ref] = self._format.verify(ref, depth=self._depth)
        return self._verdicts[ref]


def _note(ref: CheckpointRef, skipped: list[ev.SkippedCheckpoint]) -> str:
    if not skipped:
        return ""
    passed = "; ".join(f"step {each.step}: {each.reason}" for each in skipped)
    return f"resumes at step {ref.step}, passing over newer checkpoints ({passed})"
