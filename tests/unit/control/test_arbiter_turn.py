from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.control.arbiter_state import Claim, QueueLease
from airflow_llmsched.control.arbiter_turn import FAR_S, LOOK_EVERY_S, ends_by_s, turn_of, unknown_words
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue import Limits, QueuedGang, TeamQuota
from airflow_llmsched.domain.queue_decision import WaitReason, Waits
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
CLAIM = Claim(gang=QueuedGang(key=RUN, team="red", priority_class="normal"), num_records=1, since_s=100.0)


def waits(reason: WaitReason = WaitReason.CAPACITY, **others: float | bool) -> Claim:
    told = Waits(gang=RUN, reason=reason, detail="needs 2 accelerators", **others)  # type: ignore[arg-type]
    return replace(CLAIM, wait=told)


def test_a_claim_that_waits_says_why_and_comes_back_by_itself() -> None:
    turn = turn_of(waits(start_s=500.0, is_promised=True), None, QueueWish(), now_s=110.0)
    assert turn.reason == "waits in the queue (capacity): needs 2 accelerators"
    assert (turn.again_at_s, turn.start_s, turn.is_promised) == (110.0 + LOOK_EVERY_S, 500.0, True)
    assert turn_of(CLAIM, None, None, now_s=110.0).reason == "waits in the queue"


def test_nobody_waits_for_longer_than_for_the_end_of_the_lease_of_whoever_decides() -> None:
    assert turn_of(CLAIM, QueueLease(holder="x", until_s=120.0), None, now_s=110.0).again_at_s == 120.0


def test_it_is_given_up_after_its_time_and_where_its_quota_will_never_do() -> None:
    late = turn_of(waits(), None, QueueWish(max_wait_s=50.0), now_s=151.0)
    assert late.again_at_s is None
    assert late.reason.endswith("; waited 51 s")
    assert turn_of(waits(WaitReason.OVER_QUOTA), None, QueueWish(), now_s=110.0).again_at_s is None


def test_a_start_in_the_far_future_is_none() -> None:
    assert turn_of(waits(start_s=110.0 + 2 * FAR_S), None, None, now_s=110.0).start_s is None


def test_words_that_the_deployment_does_not_know_are_told_with_those_it_does() -> None:
    rules = QueueRules(quotas=(TeamQuota(team="red", nominal=Limits(num_accelerators=1.0)),))
    assert unknown_words(QueueWish(team="red"), rules) == ""
    assert "no team 'default'" in unknown_words(None, rules)
    assert "no class 'soon'; the fleet file has low" in unknown_words(QueueWish(team="red", priority="soon"), rules)


def test_nobody_knows_when_a_gang_ends_that_says_nothing() -> None:
    assert ends_by_s(None, now_s=5.0) is None
    assert ends_by_s(3.0, now_s=5.0) == 8.0
