from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.control.capacity import Denied, Holds, Standing, Waits


def test_the_three_answers_before_a_launch_are_told_apart_by_their_kind() -> None:
    answers = [Holds(reason="a"), Waits(reason="b", again_at_s=1.0), Denied(reason="c")]
    assert [answer.kind for answer in answers] == ["holds", "waits", "denied"]


def test_a_run_that_showed_nothing_yet_is_as_fast_as_it_was_thought() -> None:
    standing = codec.from_json(Standing, codec.to_json(Standing(left_ratio=1.0)))
    assert (standing.pace_ratio, standing.step_s) == (1.0, None)
