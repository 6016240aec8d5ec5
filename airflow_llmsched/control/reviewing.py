"""Judges a gang that is alive, now and then: does the budget last, and is it where it should be. Has no effects itself.

The budget is judged by what the run kept lately: steps that counted, over what was spent on them, losses and waits
included. A young gang that has shown nothing yet is not judged by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.capacity import CapacityChooser, Moves, Standing, Stays
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.planner.market import budget
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewer:
    """Acts for one run. Without ``capacity`` only the budget is judged."""

    context: RunContext
    capacity: CapacityChooser | None

    def review(
        self, command: cmd.Review, *, durable_step: int, now_s: float, saved_in: str = ""
    ) -> ev.Reviewed | ev.DeadlineReached:
        """Return what is to become of the gang. ``durable_step`` is that of the newest checkpoint.

        ``saved_in`` is the storage that this lies in, as in ``Standing``.

        Raises ``TransientError``, ``LeftoverError``.
        """
        verdict = self._judge(command, now_s=now_s)
        if isinstance(verdict, budget.CheckpointAndStop):
            return ev.DeadlineReached(
                at_s=now_s, last_step=command.last_step, cause=ev.DeadlineCause.PROJECTION, words=verdict.words
            )
        choice = self._choose(command, durable_step=durable_step, saved_in=saved_in, now_s=now_s)
        return ev.Reviewed(
            at_s=now_s,
            key=command.key,
            keeps=isinstance(choice, Stays),
            reason=choice.reason,
            step=command.last_step,
            spent_usd=command.spend.usd,
            again_at_s=choice.again_at_s if isinstance(choice, Stays) else now_s,
            pace_ratio=choice.pace_ratio,
            asks=verdict.words if isinstance(verdict, budget.Ask) else "",
        )

    def _choose(self, command: cmd.Review, *, durable_step: int, saved_in: str, now_s: float) -> Stays | Moves:
        every_s = self.context.review_every_s or HOUR_S
        if self.capacity is None or self.context.num_steps is None:
            return Stays(reason="", again_at_s=now_s + every_s, pace_ratio=command.pace_ratio)
        left_ratio = max(0.0, 1.0 - durable_step / self.context.num_steps)
        return self.capacity.review(
            Standing(
                left_ratio=left_ratio,
                pace_ratio=command.pace_ratio,
                step_s=_step_s(command, now_s=now_s),
                cause=command.cause,
                nodes=frozenset(command.nodes),
                saved_in=saved_in,
            )
        )

    def _judge(self, command: cmd.Review, *, now_s: float) -> budget.BudgetVerdict:
        workload, num_steps = self.context.workload, self.context.num_steps
        max_usd = command.max_usd
        goodput = self._goodput_tokens_per_s(command, now_s=now_s)
        if max_usd is None or num_steps is None or goodput is None:
            return budget.Go(words="nothing to judge by")
        standing = budget.Standing(
            spent_usd=command.spend.usd,
            usd_per_hour=command.spend.usd_per_hour,
            left_tokens=self._tokens(max(0, num_steps - command.last_step)),
            goodput_tokens_per_s=goodput,
            is_running=True,
            save_s=workload.launcher.grace_s,
        )
        return budget.judge(standing, max_usd=max_usd, on_overrun=workload.budget.on_overrun)

    def _goodput_tokens_per_s(self, command: cmd.Review, *, now_s: float) -> float | None:
        """Return tokens kept per second of paying what is paid now; None while there is nothing to judge by."""
        usd_per_hour = command.spend.usd_per_hour
        if command.progress:
            since = command.progress[0]
            num_steps, paid_s = command.last_step - since.step, now_s - since.at_s
            if usd_per_hour > 0:
                paid_s = (command.spend.usd - since.spent_usd) / usd_per_hour * HOUR_S
        else:
            num_steps, paid_s = command.last_step - command.resumed_step, now_s - command.launched_at_s
        if paid_s <= 0 or (num_steps <= 0 and len(command.progress) < _MANY):
            return None
        return max(0.0, self._tokens(num_steps) / paid_s)

    def _tokens(self, num_steps: int) -> float:
        return float(num_steps * self.context.workload.batch[0].tokens_per_step)


def _step_s(command: cmd.Review, *, now_s: float) -> float | None:
    """Return what a step of this gang takes, all told, since its first review; None: it has not shown it yet."""
    own = [point for point in command.progress if point.at_s >= command.launched_at_s]
    if not own or command.last_step <= own[0].step:
        return None
    return (now_s - own[0].at_s) / (command.last_step - own[0].step)


_MANY = 3
"""Reviews after which it counts that no step was kept: before, the gang may still be starting."""
