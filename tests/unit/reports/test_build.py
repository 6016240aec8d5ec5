from __future__ import annotations

import math
from dataclasses import replace

import pytest

from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.lease_book import Rental, RentalEnd, RentalEnding
from airflow_llmsched.domain.checkpoint import Damaged, SavedBy
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.identity import LeaseKey
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.domain.run_report import CheckpointState, PriceList, RunNames, RunOutcome
from airflow_llmsched.reports.build import ModelSpeed, build_report
from tests.support.history import RUN, T0, attempt, checkpoint, mark, preempted_run, report, step, steps
from tests.support.lease_house import intent_of


def bare(**parts):
    return build_report(
        names=RunNames(run_key=RUN, generation=1, workload="w"),
        outcome=parts.pop("outcome", RunOutcome.FAILED),
        run_start_s=T0,
        run_end_s=T0 + 30,
        created_at_s=T0 + 31,
        **parts,
    )


def test_a_preempted_run_is_told_in_full():
    built = build_report(**preempted_run())
    assert built.lost_steps == (41, 42)
    assert built.retrained_only_lost
    assert [row.num_steps_kept for row in built.attempts] == [40, 40]
    assert [row.num_steps_lost for row in built.attempts] == [2, 0]
    assert [row.resumed_from_step for row in built.attempts] == [None, 40]
    assert [row.phase for row in built.attempts] == [GangPhase.PREEMPTED, GangPhase.SUCCEEDED]
    assert built.num_tokens_kept == 80 * 512
    assert built.num_tokens_lost == 2 * 512
    assert built.step_s_median == pytest.approx(0.85, abs=0.01)
    assert built.step_s_p95 == pytest.approx(1.1)
    assert built.ledger.ettr_ratio == pytest.approx(68 / 140, abs=1e-6)
    assert built.ledger.totals_s[Bucket.UNCLASSIFIED] == 0
    assert built.notes == ()


def test_the_stalled_step_says_how_long_it_stood():
    stalled = [row for row in build_report(**preempted_run()).steps if row.stall_s > 0]
    assert [(row.attempt, row.step) for row in stalled] == [(2, 56)]
    assert stalled[0].stall_s == pytest.approx(7.0)


def test_cost_is_node_time_at_list_price():
    built = build_report(**preempted_run())
    node_s = [2 * 39.2, 64.0]
    assert [row.node_s for row in built.attempts] == pytest.approx(node_s)
    assert built.usd == pytest.approx(sum(node_s) / 3600 * 0.68)
    assert "c7i.4xlarge" in built.price_source


def test_a_shape_without_a_price_makes_the_cost_unknown_not_zero():
    built = bare(
        attempts=[attempt(1, ended=20, phase=GangPhase.FAILED)],
        prices=PriceList(usd_per_hour={"other": 1.0}, source="somewhere"),
    )
    assert built.usd is None
    assert any("cpu-node" in note for note in built.notes)


def test_launches_before_a_clear_cost_too_and_are_told_apart():
    prices = PriceList(usd_per_hour={"cpu-node": 36.0}, source="somewhere")
    last = attempt(1, ended=20, phase=GangPhase.SUCCEEDED)
    alone = bare(attempts=[last], prices=prices)
    before = [attempt(number, ended=10, phase=GangPhase.STOPPED) for number in (1, 2)]
    built = bare(attempts=[last], earlier=before, prices=prices)
    assert built.earlier_usd > 0
    assert built.usd == pytest.approx(alone.usd + built.earlier_usd)
    assert (built.num_earlier_attempts, len(built.attempts)) == (2, 1)
    assert (alone.earlier_usd, alone.num_earlier_attempts) == (0, 0)
    assert built.ledger == alone.ledger


def test_an_earlier_launch_without_a_price_makes_the_cost_unknown_and_says_why():
    prices = PriceList(usd_per_hour={"cpu-node": 36.0}, source="somewhere")
    before = attempt(1, ended=10, phase=GangPhase.STOPPED)
    before = replace(before, plan=replace(before.plan, node_shape="rare"))
    built = bare(attempts=[attempt(1, ended=20, phase=GangPhase.SUCCEEDED)], earlier=[before], prices=prices)
    assert (built.usd, built.earlier_usd) == (None, None)
    assert any("rare" in note for note in built.notes)


def test_a_checkpoint_in_an_attempts_folder_is_that_attempts_also_without_its_mark():
    own = replace(checkpoint(40), saved_by=SavedBy(generation=1, attempt=2))
    old = replace(checkpoint(30), path="/other", saved_by=SavedBy(generation=0, attempt=7))
    built = bare(checkpoints=[(own, None), (old, None)])
    assert [(row.step, row.attempt) for row in built.checkpoints] == [(30, None), (40, 2)]


def test_an_attempt_that_began_again_is_told_with_what_to_do():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.PREEMPTED),
        attempt(2, launched=15, ended=25, phase=GangPhase.SUCCEEDED, resumed_step=4),
    ]
    first = [report(steps=steps(1, 6, start=2))]
    for second, told in ((5, False), (1, True)):
        built = bare(attempts=attempts, reports={1: first, 2: [report(steps=steps(second, 8, start=16))]})
        assert any("separate_paths" in note and "from step 4 but" in note for note in built.notes) is told


def test_a_whole_checkpoint_off_the_line_is_given_up_and_says_why():
    first, second = SavedBy(generation=1, attempt=1), SavedBy(generation=1, attempt=2)
    line = CheckpointLine().launched(first, step=0, own_folder=True).launched(second, step=30, own_folder=True)
    refs = [replace(checkpoint(step), saved_by=first) for step in (30, 40, 50)]
    found = [(refs[0], None), (refs[1], None), (refs[2], Damaged(reason="cut short"))]
    rows = bare(checkpoints=found, line=line).checkpoints
    assert [row.state for row in rows] == [CheckpointState.COMPLETE, CheckpointState.GIVEN_UP, CheckpointState.DAMAGED]
    assert "took over" in rows[1].reason


def test_mfu_is_model_flop_of_kept_steps_over_the_peak():
    built = build_report(**preempted_run())
    possible_s = 40 * 0.6 * 4 + (39 * 1.1 + 8.1) * 2
    assert built.mfu_ratio == pytest.approx(80 * 512 * 1.2e7 / (possible_s * 5e10), rel=1e-3)
    assert bare().mfu_ratio is None


def test_mfu_goes_by_the_phase_of_each_step_and_the_accelerators_of_each_attempt():
    first, second, third = (
        attempt(1, ended=12, phase=GangPhase.PREEMPTED),
        attempt(2, launched=15, ended=25, phase=GangPhase.PREEMPTED, resumed_step=4),
        attempt(3, launched=26, ended=38, phase=GangPhase.SUCCEEDED, resumed_step=10),
    )
    attempts = [
        first,
        replace(second, plan=replace(second.plan, node_shape="faster")),
        replace(third, plan=replace(third.plan, node_shape="nobody knows")),
    ]
    reports = {
        1: [report(steps=steps(1, 4, start=2), marks=[mark(4, 6)])],
        2: [report(steps=steps(5, 10, start=16), marks=[mark(10, 22)])],
        3: [report(steps=steps(11, 12, start=28))],
    }
    speed = ModelSpeed(flop_per_token=((1, 1e7), (7, 3e7)), peak_flop_per_s={"cpu-node": 1e10, "faster": 4e10})
    built = bare(attempts=attempts, reports=reports, speed=speed)
    kept = [row for row in built.steps if row.kept]
    assert [row.step for row in kept] == list(range(1, 13))
    model_flop = sum(row.num_tokens * (1e7 if row.step < 7 else 3e7) for row in kept[:10])
    possible_flop = sum(row.step_s * 4 * (1e10 if row.step < 5 else 4e10) for row in kept[:10])
    assert built.mfu_ratio == pytest.approx(model_flop / possible_flop)
    unknown = replace(speed, peak_flop_per_s={})
    assert bare(attempts=attempts, reports=reports, speed=unknown).mfu_ratio is None


def test_storage_decides_the_state_of_a_checkpoint_and_marks_tell_who_wrote_it():
    built = build_report(**preempted_run())
    assert [(row.step, row.state, row.attempt) for row in built.checkpoints] == [
        (20, CheckpointState.MARKED, 1),
        (40, CheckpointState.MARKED, 1),
        (60, CheckpointState.COMPLETE, 2),
        (80, CheckpointState.VERIFIED, 2),
        (90, CheckpointState.TORN, None),
    ]
    assert built.checkpoints[3].digest == "ab" * 32
    assert built.checkpoints[3].num_bytes == 24_500_000
    assert built.checkpoints[2].saved_at_s == T0 + 94


def test_a_damaged_checkpoint_says_why():
    built = bare(checkpoints=[(checkpoint(10), Damaged(reason="__0_0.distcp does not match its checksum"))])
    assert built.checkpoints[0].state is CheckpointState.DAMAGED
    assert "__0_0.distcp" in built.checkpoints[0].reason


def test_a_run_that_launched_nothing_has_a_report_that_says_so():
    built = bare(reason="no capacity")
    assert built.attempts == ()
    assert built.steps == ()
    assert built.step_s_median is None
    assert built.usd == 0
    assert any("No gang was launched" in note for note in built.notes)
    assert any("No evaluation" in note for note in built.notes)


def test_a_half_known_run_names_what_is_missing():
    built = bare(
        outcome=RunOutcome.UNFINISHED,
        attempts=[
            attempt(1, ended=10, phase=GangPhase.LOST),
            attempt(2, launched=12, resumed_step=4),
            attempt(3, intended=15, launched=None, resumed_step=4),
        ],
        reports={1: [report(steps=[*steps(1, 2, start=2), *steps(4, 4, start=5)], marks=[mark(4, 6)])]},
    )
    notes = " ".join(built.notes)
    assert "attempt 2, 3" in notes
    assert "that have no record: 1" in notes
    assert "The end of attempt 2 is not recorded" in notes
    assert "A gang was lost" in notes
    assert built.attempts[1].node_s == pytest.approx(2 * (30 - 12))
    assert built.attempts[2].node_s == 0


def test_a_loss_that_is_no_number_is_kept_as_unknown_and_noted():
    built = bare(
        attempts=[attempt(1, phase=GangPhase.RUNNING)],
        reports={1: [report(steps=[step(1, 2, 3, loss=math.nan), step(2, 3, 4, loss=math.inf), step(3, 4, 5)])]},
    )
    assert [row.loss for row in built.steps] == [None, None, 3.0]
    assert any("not a finite number: 2" in note for note in built.notes)


def test_much_unmeasured_time_is_noted():
    assert any("covered by no measurement" in note for note in bare().notes)


def test_rented_capacity_is_told_beside_the_launches_and_no_part_of_their_cost():
    over = rental(1, end=RentalEnd(ending=RentalEnding.RELEASED, reason="teardown", at_s=T0 + 10))
    refused = rental(2, end=RentalEnd(ending=RentalEnding.REFUSED, reason="no capacity", at_s=T0 + 12))
    held = rental(3)
    built = bare(rentals=[over, refused, held])
    assert built.num_rentals == 2
    assert built.rented_usd == pytest.approx((10 + 30) / 3600 * 2 * 40.0)
    assert built.usd == 0.0
    assert (bare().rented_usd, bare().num_rentals) == (None, 0)


def rental(number, **parts):
    return Rental(intent=intent_of(LeaseKey(run=RUN, generation=1, rental=number), at_s=T0), **parts)
