from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.control.ledger import build_ledger, stalls
from airflow_llmsched.control.lineage import attempt_steps
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.progress import AgentSpanKind, StepRecord
from tests.support.history import T0, agent_span, attempt, mark, preempted, report, step, steps

MEASURED = (Bucket.QUEUE, Bucket.PROVISION, Bucket.STAGE, Bucket.RECOVER, Bucket.EVALUATE, Bucket.HANDOFF)


def span(bucket, start, end, **rest):
    return Span(bucket=bucket, start_s=T0 + start, end_s=T0 + end, **rest)


def ledger(end, *, spans=(), attempts=(), reports=None):
    return build_ledger(run_start_s=T0, run_end_s=T0 + end, spans=spans, attempts=attempts, reports=reports)


def seconds(built):
    return {bucket.value: round(total, 6) for bucket, total in built.totals_s.items() if total > 1e-6}


def assert_tiles(built):
    edges = [built.start_s, *(each.end_s for each in built.spans)]
    assert [each.start_s for each in built.spans] == edges[:-1]
    assert edges[-1] == built.end_s
    assert all(each.end_s > each.start_s for each in built.spans)
    assert math.fsum(built.totals_s.values()) == pytest.approx(built.wall_s, abs=1e-6)


# --- exact scenarios -------------------------------------------------------------------------------------------------


def test_a_quiet_run_has_every_second_in_its_bucket():
    built = ledger(
        40,
        spans=[span(Bucket.QUEUE, 0, 2), span(Bucket.STAGE, 2, 7), span(Bucket.EVALUATE, 32, 38)],
        attempts=[attempt(1, intended=7, launched=8, ended=30, end_seen=31, phase=GangPhase.SUCCEEDED)],
        reports={
            1: [
                report(
                    steps=[*steps(1, 6, start=12), *steps(7, 12, start=20)],
                    spans=[
                        agent_span(AgentSpanKind.INIT, 8.5, 12),
                        agent_span(AgentSpanKind.SAVE, 18, 20),
                        agent_span(AgentSpanKind.SAVE, 26, 29),
                    ],
                )
            ]
        },
    )
    assert seconds(built) == {
        "queue": 2,
        "stage": 5,
        "provision": 2,  # intent to launch, and giving back
        "init": 4,
        "useful": 12,
        "save": 5,
        "handoff": 1,
        "evaluate": 6,
        "unclassified": 3,  # 31 to 32 and 38 to 40: nobody measured them
    }
    assert built.ettr_ratio == pytest.approx(12 / 40)
    assert_tiles(built)


def test_seven_seconds_of_hang_inside_training_are_lost():
    hung = [*steps(1, 10, start=2, step_s=0.2), step(11, 4, 11.2), *steps(12, 20, start=11.2, step_s=0.2)]
    built = ledger(
        14,
        attempts=[attempt(1, launched=0, ended=13, phase=GangPhase.SUCCEEDED)],
        reports={1: [report(steps=hung, spans=[agent_span(AgentSpanKind.INIT, 0, 2)])]},
    )
    assert built.totals_s[Bucket.LOST] == pytest.approx(7.0)
    assert built.totals_s[Bucket.USEFUL] == pytest.approx(20 * 0.2)


def test_seven_seconds_of_hang_that_ends_in_a_kill_are_lost():
    built = ledger(
        14,
        attempts=[attempt(1, launched=0, ended=11, end_seen=12, phase=GangPhase.FAILED)],
        reports={1: [report(steps=steps(1, 10, start=2, step_s=0.2), marks=[mark(10, 4)])]},
    )
    assert built.totals_s[Bucket.LOST] == pytest.approx(7.0)
    assert built.totals_s[Bucket.USEFUL] == pytest.approx(2.0)


def test_a_slow_save_of_five_seconds_is_save_whichever_rank_was_slow():
    built = ledger(
        20,
        attempts=[attempt(1, launched=0, ended=19, phase=GangPhase.SUCCEEDED)],
        reports={
            1: [
                report(
                    steps=[*steps(1, 4, start=2), *steps(5, 8, start=6.5)],
                    spans=[agent_span(AgentSpanKind.SAVE, 6, 6.5)],
                ),
                report(node="node-1", spans=[agent_span(AgentSpanKind.SAVE, 6, 11, rank=2)]),
            ]
        },
    )
    assert built.totals_s[Bucket.SAVE] == pytest.approx(5.0)


def test_six_seconds_of_rendezvous_wait_are_init():
    built = ledger(
        20,
        attempts=[attempt(1, launched=1, ended=16, phase=GangPhase.SUCCEEDED, started_at_s=T0 + 0.5)],
        reports={
            1: [
                report(
                    steps=[step(1, 1.5, 9), *steps(2, 8, start=9)],
                    spans=[agent_span(AgentSpanKind.INIT, 1, 1.5)],
                ),
                report(node="node-1", spans=[agent_span(AgentSpanKind.INIT, 1, 8, rank=2)]),
            ]
        },
    )
    assert built.totals_s[Bucket.INIT] == pytest.approx(7.5)
    assert built.totals_s[Bucket.USEFUL] == pytest.approx(8.0)


def test_the_wait_of_a_first_step_is_warm_up_and_counts_as_init():
    built = ledger(
        20,
        attempts=[attempt(1, launched=0, ended=16, phase=GangPhase.SUCCEEDED)],
        reports={
            1: [
                report(
                    steps=[step(1, 1, 8), *steps(2, 8, start=8)],
                    spans=[agent_span(AgentSpanKind.INIT, 0, 1)],
                )
            ]
        },
    )
    assert built.totals_s[Bucket.INIT] == pytest.approx(7.0)
    assert built.totals_s[Bucket.USEFUL] == pytest.approx(8.0)
    assert built.totals_s[Bucket.LOST] == 0


def test_a_preemption_with_two_lost_steps():
    built = ledger(
        32,
        spans=[span(Bucket.RECOVER, 11, 14, label="re-plan"), span(Bucket.HANDOFF, 10, 11, label="trigger")],
        attempts=[
            attempt(1, intended=0, launched=1, ended=9.5, end_seen=10, phase=GangPhase.PREEMPTED, fault=preempted(9)),
            attempt(2, intended=13, launched=14, ended=31, end_seen=31.5, phase=GangPhase.SUCCEEDED, resumed_step=4),
        ],
        reports={
            1: [report(steps=steps(1, 6, start=3), spans=[agent_span(AgentSpanKind.INIT, 1, 3)])],
            2: [report(steps=steps(5, 10, start=18, step_s=2), spans=[agent_span(AgentSpanKind.INIT, 14, 18)])],
        },
    )
    assert seconds(built) == {
        "provision": 2,  # 0 to 1, and giving back 30 to 31
        "init": 6,
        "useful": 16,
        "lost": 2.5,  # two steps, and half a second until the gang was down
        "recover": 3.5,
        "handoff": 1.5,
        "unclassified": 0.5,
    }
    lost = [each for each in built.spans if each.bucket is Bucket.LOST]
    assert [(each.attempt, each.label) for each in lost] == [(1, "steps thrown away"), (1, "no progress until the end")]
    assert_tiles(built)


def test_without_spans_of_control_the_recorded_times_say_how_long_recovery_took():
    built = ledger(
        30,
        attempts=[
            attempt(1, intended=0, launched=1, ended=9, end_seen=10, phase=GangPhase.PREEMPTED),
            attempt(2, intended=13, launched=14, ended=20, end_seen=21, phase=GangPhase.SUCCEEDED),
        ],
    )
    assert built.totals_s[Bucket.RECOVER] == pytest.approx(5.0)
    assert built.totals_s[Bucket.PROVISION] == pytest.approx(1.0)
    assert built.totals_s[Bucket.HANDOFF] == pytest.approx(1.0)


def test_a_relaunch_that_never_started_is_part_of_the_recovery():
    built = ledger(
        30,
        attempts=[
            attempt(1, launched=1, ended=9, end_seen=9, phase=GangPhase.LOST),
            attempt(2, intended=10, launched=None, end_seen=12, fault=preempted(11)),
            attempt(3, intended=13, launched=15, ended=20, end_seen=20, phase=GangPhase.SUCCEEDED),
        ],
    )
    assert built.totals_s[Bucket.RECOVER] == pytest.approx(6.0)


def test_a_gang_that_never_became_ready_is_lost_from_its_launch():
    built = ledger(20, attempts=[attempt(1, launched=1, ended=18, phase=GangPhase.FAILED)])
    assert built.totals_s[Bucket.LOST] == pytest.approx(17.0)


def test_a_trainer_without_agent_that_succeeded_is_unclassified_not_useful():
    built = ledger(20, attempts=[attempt(1, launched=0, ended=20, phase=GangPhase.SUCCEEDED)])
    assert seconds(built) == {"unclassified": 20}
    assert built.ettr_ratio == 0


def test_a_live_run_counts_what_is_measured_so_far():
    built = ledger(
        10,
        attempts=[attempt(1, launched=0, phase=GangPhase.RUNNING)],
        reports={1: [report(steps=steps(1, 6, start=2), spans=[agent_span(AgentSpanKind.INIT, 0, 2)])]},
    )
    assert seconds(built) == {"init": 2, "useful": 6, "unclassified": 2}


def test_what_agents_measured_wins_over_what_control_measured():
    built = ledger(
        10,
        spans=[span(bucket, 0, 10) for bucket in MEASURED],
        attempts=[attempt(1, launched=0, ended=9, phase=GangPhase.SUCCEEDED)],
        reports={
            1: [
                report(
                    steps=steps(1, 6, start=2),
                    spans=[agent_span(AgentSpanKind.INIT, 0, 2), agent_span(AgentSpanKind.EVALUATE, 8, 9)],
                )
            ]
        },
    )
    assert seconds(built) == {"init": 2, "useful": 6, "evaluate": 1, "handoff": 1}


@pytest.mark.parametrize(
    ("strong", "weak"),
    list(
        zip(
            (Bucket.HANDOFF, Bucket.EVALUATE, Bucket.STAGE, Bucket.RECOVER, Bucket.PROVISION),
            (Bucket.EVALUATE, Bucket.STAGE, Bucket.RECOVER, Bucket.PROVISION, Bucket.QUEUE),
            strict=True,
        )
    ),
)
def test_of_two_measurements_by_control_the_more_specific_one_wins(strong, weak):
    built = ledger(10, spans=[span(weak, 0, 10), span(strong, 4, 6)])
    assert seconds(built) == {weak.value: 8, strong.value: 2}


def test_a_node_clock_that_runs_ahead_does_not_stretch_init_over_training():
    built = ledger(
        30,
        attempts=[attempt(1, launched=0, ended=25, phase=GangPhase.SUCCEEDED)],
        reports={
            1: [
                report(steps=steps(1, 20, start=2), spans=[agent_span(AgentSpanKind.INIT, 0, 2)]),
                report(node="node-1", spans=[agent_span(AgentSpanKind.INIT, 15, 17, rank=2)]),
            ]
        },
    )
    assert built.totals_s[Bucket.INIT] == pytest.approx(3.0)


def test_a_larger_batch_does_not_look_like_a_stall():
    grown = [*steps(1, 40, start=2, step_s=0.5), *steps(41, 80, start=22, step_s=2.0, num_tokens=2048)]
    built = ledger(
        110,
        attempts=[attempt(1, launched=0, ended=103, phase=GangPhase.SUCCEEDED)],
        reports={1: [report(steps=grown)]},
    )
    assert built.totals_s[Bucket.LOST] == 0
    assert built.totals_s[Bucket.USEFUL] == pytest.approx(100.0)


def test_a_step_is_a_stall_only_beyond_both_three_medians_and_a_second():
    def stalled(slow_s, step_s):
        records = [*steps(1, 9, start=0, step_s=step_s), step(10, 9 * step_s, 9 * step_s + slow_s)]
        found = attempt_steps([attempt(1)], {1: [report(steps=records)]})[1]
        return bool(stalls(found)[0][-1])

    assert not stalled(1.09, 0.1)
    assert stalled(1.11, 0.1)
    assert not stalled(5.9, 2.0)
    assert stalled(6.1, 2.0)


def test_two_steps_are_enough_to_see_a_stall():
    found = attempt_steps([attempt(1)], {1: [report(steps=[step(1, 0, 0.1), step(2, 0.1, 7.2)])]})[1]
    assert stalls(found)[0].tolist() == [False, True]


def test_an_empty_run_and_one_that_ends_before_it_starts_are_empty():
    for end in (0, -5):
        built = ledger(end, spans=[span(Bucket.QUEUE, -10, 10)])
        assert built.wall_s == 0
        assert built.ettr_ratio == 0
        assert built.spans == ()


def test_a_measured_span_may_not_claim_what_only_records_show():
    with pytest.raises(ValueError, match="useful"):
        ledger(10, spans=[span(Bucket.USEFUL, 0, 10)])


def test_times_that_are_not_numbers_are_not_measurements():
    built = ledger(
        10,
        spans=[
            span(Bucket.STAGE, 0, math.nan),
            span(Bucket.STAGE, math.nan, 3),
            span(Bucket.STAGE, 0, math.inf),
            span(Bucket.STAGE, 5, 4),
            span(Bucket.QUEUE, 1, 2),
        ],
    )
    assert seconds(built) == {"queue": 1, "unclassified": 9}


# --- properties ------------------------------------------------------------------------------------------------------

OFFSET = st.floats(-50, 150, allow_nan=False) | st.integers(-50, 150).map(float)
SPANS = st.lists(
    st.builds(
        span,
        st.sampled_from(MEASURED),
        OFFSET,
        OFFSET,
        label=st.sampled_from(["", "a", "b"]),
        attempt=st.none() | st.integers(1, 3),
    ),
    max_size=12,
)
PHASES = st.none() | st.sampled_from(GangPhase)


@st.composite
def histories(draw):
    attempts, reports = [], {}
    for number in range(1, draw(st.integers(0, 3)) + 1):
        attempts.append(
            attempt(
                number,
                intended=draw(OFFSET),
                launched=draw(st.none() | OFFSET),
                ended=draw(st.none() | OFFSET),
                end_seen=draw(st.none() | OFFSET),
                phase=draw(PHASES),
                resumed_step=draw(st.none() | st.integers(1, 20)),
            )
        )
        reports[number] = [
            report(
                seq=seq,
                steps=[
                    step(draw(st.integers(1, 20)), draw(OFFSET), draw(OFFSET)) for _ in range(draw(st.integers(0, 6)))
                ],
                spans=[
                    agent_span(draw(st.sampled_from(AgentSpanKind)), draw(OFFSET), draw(OFFSET), rank=rank)
                    for rank in range(draw(st.integers(0, 3)))
                ],
                marks=[mark(draw(st.integers(1, 20)), 0) for _ in range(draw(st.integers(0, 2)))],
            )
            for seq in range(1, draw(st.integers(0, 2)) + 1)
        ]
    return attempts, reports


@settings(max_examples=150, deadline=None)
@given(SPANS, histories(), st.floats(0.1, 120))
def test_the_spans_tile_the_run_whatever_the_records_say(spans, history, end):
    attempts, reports = history
    assert_tiles(ledger(end, spans=spans, attempts=attempts, reports=reports))


@settings(max_examples=100, deadline=None)
@given(SPANS, histories(), st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(spans, history, chance: random.Random):
    attempts, reports = history
    expected = ledger(100, spans=spans, attempts=attempts, reports=reports)

    def shuffled(items):
        return chance.sample(list(items), len(items))

    mixed = {
        number: shuffled(
            [
                replace(each, steps=tuple(shuffled(each.steps)), spans=tuple(shuffled(each.spans)))
                for each in reports[number]
            ]
        )
        for number in shuffled(reports)
    }
    assert ledger(100, spans=shuffled(spans), attempts=shuffled(attempts), reports=mixed) == expected


@settings(max_examples=100, deadline=None)
@given(SPANS, histories(), st.sampled_from(MEASURED), st.floats(0, 90), st.floats(0, 50))
def test_a_later_span_never_changes_what_came_before_it(spans, history, bucket, start, length):
    attempts, reports = history

    def before(built):
        return [
            (each.bucket, each.attempt, each.label, each.start_s, min(each.end_s, T0 + start))
            for each in built.spans
            if each.start_s < T0 + start
        ]

    plain = ledger(100, spans=spans, attempts=attempts, reports=reports)
    more = ledger(100, spans=[*spans, span(bucket, start, start + length)], attempts=attempts, reports=reports)
    assert before(more) == before(plain)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(MEASURED), st.integers(0, 60), st.integers(0, 60)), max_size=10))
def test_the_sweep_agrees_with_asking_each_second_on_its_own(measured):
    strength = [Bucket.HANDOFF, Bucket.EVALUATE, Bucket.STAGE, Bucket.RECOVER, Bucket.PROVISION, Bucket.QUEUE]
    expected = dict.fromkeys(Bucket, 0)
    for second in range(60):
        covering = {bucket for bucket, start, end in measured if start <= second < end}
        expected[next((bucket for bucket in strength if bucket in covering), Bucket.UNCLASSIFIED)] += 1
    built = ledger(60, spans=[span(bucket, start, end) for bucket, start, end in measured])
    assert {bucket: round(total) for bucket, total in built.totals_s.items()} == expected


def test_a_million_steps_are_accounted_for_within_three_seconds():
    chance = np.random.default_rng(7)
    ends = T0 + 2 + np.cumsum(chance.uniform(0.09, 0.11, 1_000_000))
    starts = np.concatenate([[T0 + 2], ends[:-1]])
    records = tuple(
        StepRecord(step=number, start_s=start, end_s=end, loss=3.0, num_tokens=512)
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), start=1)
    )
    history = [attempt(1, launched=0, ended=float(ends[-1] - T0), phase=GangPhase.SUCCEEDED)]
    reports = {1: [report(steps=records)]}
    begun_s = time.process_time()
    built = ledger(float(ends[-1] - T0), attempts=history, reports=reports)
    spent_s = time.process_time() - begun_s
    assert spent_s < 3.0
    assert built.totals_s[Bucket.USEFUL] == pytest.approx(float(ends[-1] - T0 - 2))
