"""Is the budget going to last, and where should the gang be: judged by what it kept lately."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.capacity import Holds, Moves, Standing, Stays
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.reviewing import Reviewer
from airflow_llmsched.control.spending import Spend
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.progress import ProgressPoint
from airflow_llmsched.domain.workload import BudgetSpec, OnOverrun
from tests.support.sim_house import RUN, workload_of

KEY = AttemptKey(run=RUN, generation=1, attempt=1)
EVERY_S = 600.0


def context(*, on_overrun: OnOverrun = OnOverrun.STOP) -> RunContext:
    budget = BudgetSpec(num_steps=1000, max_usd=100.0, on_overrun=on_overrun)
    return RunContext(
        run_key=RUN,
        generation=0,
        workload=replace(workload_of(), budget=budget),
        run_dir="mem",
        checkpoint_root="mem",
        command=("train",),
        num_steps=1000,
        review_every_s=EVERY_S,
    )


def command(**changes) -> cmd.Review:
    """A gang that made 100 steps in its first 1000 seconds, at $36 an hour."""
    told = {
        "key": KEY,
        "cause": "it is time",
        "launched_at_s": 0.0,
        "resumed_step": 0,
        "last_step": 100,
        "spend": Spend(usd=10.0, usd_per_hour=36.0),
        "max_usd": 101.0,
    }
    return cmd.Review(**{**told, **changes})


def review(asked: cmd.Review, *, on_overrun: OnOverrun = OnOverrun.STOP, now_s: float = 1000.0):
    return Reviewer(context=context(on_overrun=on_overrun), capacity=None).review(asked, durable_step=0, now_s=now_s)


def test_a_pace_that_the_budget_pays_for_goes_on() -> None:
    """Another 900 steps take 9000 s and $90."""
    verdict = review(command())
    assert isinstance(verdict, ev.Reviewed)
    assert verdict.keeps
    assert (verdict.step, verdict.spent_usd, verdict.again_at_s, verdict.asks) == (100, 10.0, 1600.0, "")


def test_a_pace_that_it_does_not_pay_for_saves_and_stops() -> None:
    verdict = review(command(max_usd=99.0))
    assert isinstance(verdict, ev.DeadlineReached)
    assert verdict.cause is ev.DeadlineCause.PROJECTION
    assert "$100.00 in all, $1.00 too much" in verdict.words
    assert verdict.last_step == 100


def test_or_asks_and_goes_on_while_there_is_money_for_a_last_checkpoint() -> None:
    verdict = review(command(max_usd=99.0), on_overrun=OnOverrun.ASK)
    assert isinstance(verdict, ev.Reviewed)
    assert verdict.keeps
    assert "$1.00 too much" in verdict.asks
    broke = review(command(max_usd=99.0, spend=Spend(usd=98.95, usd_per_hour=36.0)), on_overrun=OnOverrun.ASK)
    assert isinstance(broke, ev.DeadlineReached)


def test_what_was_lost_and_waited_for_since_the_first_review_counts() -> None:
    """In 2000 s $20 were paid for 50 steps: 900 more would cost $360."""
    slow = command(
        progress=(ProgressPoint(at_s=0.0, step=50, spent_usd=0.0),), spend=Spend(usd=20.0, usd_per_hour=36.0)
    )
    assert isinstance(review(slow, now_s=9999.0), ev.DeadlineReached)
    waited = replace(slow, spend=Spend(usd=1.0, usd_per_hour=36.0))  # most of the time nothing was paid
    assert isinstance(review(waited, now_s=9999.0), ev.Reviewed)


def test_a_gang_that_has_shown_nothing_yet_is_not_judged_and_one_that_never_does_is() -> None:
    young = command(last_step=0)
    assert isinstance(review(young), ev.Reviewed)
    points = tuple(ProgressPoint(at_s=EVERY_S * number, step=0, spent_usd=6.0 * number) for number in range(3))
    assert isinstance(review(replace(young, progress=points), now_s=2000.0), ev.DeadlineReached)


def test_without_a_budget_nothing_is_judged() -> None:
    assert isinstance(review(command(max_usd=None)), ev.Reviewed)


@dataclass
class Chooser:
    """Says what it was made with, and remembers what it was asked."""

    answer: Stays | Moves
    asked: list[Standing] = field(default_factory=list)

    def hold(self, standing: Standing) -> Holds:
        raise AssertionError(standing)

    def review(self, standing: Standing) -> Stays | Moves:
        self.asked.append(standing)
        return self.answer


@pytest.mark.parametrize("answer", [Stays(reason="fine", again_at_s=7.0, pace_ratio=2.0), Moves(reason="cheaper")])
def test_where_to_be_is_asked_with_what_is_durable_and_what_a_step_takes(answer: Stays | Moves) -> None:
    chooser = Chooser(answer)
    points = (ProgressPoint(at_s=500.0, step=50, spent_usd=5.0),)
    asked = command(progress=points, pace_ratio=1.5)
    reviewer = Reviewer(context=context(), capacity=chooser)
    verdict = reviewer.review(asked, durable_step=80, now_s=1000.0, saved_in="aws/us-west-2")
    assert isinstance(verdict, ev.Reviewed)
    assert (verdict.keeps, verdict.reason) == (isinstance(answer, Stays), answer.reason)
    (standing,) = chooser.asked
    assert standing.left_ratio == pytest.approx(0.92)
    assert standing.saved_in == "aws/us-west-2"
    assert (standing.pace_ratio, standing.step_s, standing.cause) == (1.5, 10.0, "it is time")
    assert verdict.pace_ratio == answer.pace_ratio


def test_a_step_of_another_gang_says_nothing_of_this_one() -> None:
    chooser = Chooser(Stays(reason="", again_at_s=7.0))
    points = (ProgressPoint(at_s=500.0, step=50, spent_usd=5.0),)
    asked = command(progress=points, launched_at_s=600.0)
    Reviewer(context=context(), capacity=chooser).review(asked, durable_step=80, now_s=1000.0)
    assert chooser.asked[0].step_s is None
