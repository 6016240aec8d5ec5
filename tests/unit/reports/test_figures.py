from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.run_report import RunReport, StepRow
from airflow_llmsched.reports.build import build_report
from airflow_llmsched.reports.figures import (
    MAX_POINTS,
    MAX_SPANS,
    figures,
    ledger_bar,
    loss_curve,
    step_times,
    timeline,
)
from tests.support.history import T0, preempted_run


@pytest.fixture(scope="module")
def finished() -> RunReport:
    return build_report(**preempted_run())


def by_name(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_bar_is_a_hundred_percent_long(finished):
    assert sum(trace.x[0] for trace in ledger_bar(finished).data) == pytest.approx(100)


def test_the_timeline_shows_every_span_in_its_row(finished):
    figure = timeline(finished)
    assert list(figure.layout.yaxis.categoryarray) == ["tasks", "attempt 1", "attempt 2"]
    assert sum(len(trace.x) for trace in figure.data) == len(finished.ledger.spans)
    assert sum(sum(trace.x) for trace in figure.data) == pytest.approx(finished.ledger.wall_s)
    assert set(by_name(figure)["recover"].y) == {"tasks", "attempt 2"}


def test_a_very_long_history_is_drawn_by_its_longest_spans(finished):
    spans = tuple(
        Span(bucket=Bucket.QUEUE, start_s=T0 + index, end_s=T0 + index + 1) for index in range(MAX_SPANS + 500)
    )
    long = replace(finished, ledger=replace(finished.ledger, spans=spans, end_s=T0 + len(spans)))
    assert sum(len(trace.x) for trace in timeline(long).data) == MAX_SPANS


def test_kept_steps_lost_steps_checkpoints_and_the_held_out_loss_are_told_apart(finished):
    traces = by_name(loss_curve(finished))
    assert list(traces["attempt 1, 4 ranks"].x) == list(range(1, 41))
    assert list(traces["attempt 1, lost"].x) == [41, 42]
    assert traces["attempt 1, lost"].opacity < 1
    assert list(traces["attempt 2, 2 ranks"].x) == list(range(41, 81))
    assert list(traces["checkpoint"].x) == [20, 40, 60, 80]
    assert list(traces["held-out loss"].y) == [2.31]


def test_the_resume_is_marked_between_the_steps_it_separates(finished):
    for figure in (loss_curve(finished), step_times(finished)):
        assert [shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1] == [40.5]
        assert any("resumes after step 40" in note.text for note in figure.layout.annotations)


def test_many_attempts_are_marked_by_lines_without_words(finished):
    many = replace(
        finished,
        attempts=tuple(
            replace(finished.attempts[1], attempt=number, resumed_from_step=number) for number in range(1, 20)
        ),
    )
    figure = step_times(many)
    assert len(figure.layout.shapes) == 18
    assert len(figure.layout.annotations) == 0


def test_a_legend_is_shown_while_it_helps(finished):
    assert loss_curve(finished).layout.showlegend
    rows = tuple(replace(finished.steps[0], attempt=number, step=number) for number in range(1, 40))
    attempts = tuple(replace(finished.attempts[0], attempt=number) for number in range(1, 40))
    assert not step_times(replace(finished, attempts=attempts, steps=rows)).layout.showlegend


def test_a_stall_stands_out_on_a_log_scale_that_shows_it_whole(finished):
    figure = step_times(finished)
    assert list(by_name(figure)["attempt 2, stalled"].x) == [56]
    assert figure.layout.yaxis.type == "log"
    low, high = figure.layout.yaxis.range
    assert 10**low < 0.6
    assert 10**high > 8.1


def test_even_steps_are_drawn_from_zero(finished):
    even = replace(finished, steps=tuple(row for row in finished.steps if row.stall_s == 0))
    figure = step_times(even)
    assert figure.layout.yaxis.type != "log"
    assert figure.layout.yaxis.range[0] == 0


def test_long_runs_are_thinned_and_keep_their_last_step(finished):
    rows = tuple(
        StepRow(attempt=1, step=number, end_s=T0, step_s=1.0, loss=2.0, num_tokens=1, kept=True)
        for number in range(1, 100_001)
    )
    trace = by_name(loss_curve(replace(finished, steps=rows)))["attempt 1, 4 ranks"]
    assert len(trace.x) <= MAX_POINTS + 1
    assert trace.x[-1] == 100_000


def test_steps_of_no_length_can_be_drawn(finished):
    still = replace(
        finished, steps=tuple(replace(row, step_s=0.0, stall_s=0.0) for row in finished.steps), step_s_median=0.0
    )
    assert step_times(still).layout.yaxis.range[1] > 0


def test_there_is_no_figure_where_there_is_nothing_to_show(finished):
    nothing = replace(finished, steps=(), ledger=replace(finished.ledger, end_s=finished.ledger.start_s, spans=()))
    assert figures(nothing) == {}
    unknown = replace(finished, steps=tuple(replace(row, loss=None) for row in finished.steps))
    assert "loss" not in figures(unknown)
    assert "step_time" in figures(unknown)


def test_labels_are_data_not_markup(finished):
    evil = replace(
        finished.ledger, spans=(replace(finished.ledger.spans[0], label="<a href='javascript:alert(1)'>x</a>"),)
    )
    figure = timeline(replace(finished, ledger=evil))
    assert "<a" not in figure.to_json().replace("\\u003c", "<")
