"""The benchmark of the triggerer, in a short form: that it measures, and that it says so when a figure is missed."""

from __future__ import annotations

import json

import pytest

from tests.bench import airflow as bench

CHEAP = {"cpu_s": 1.2, "startup_cpu_s": 1.0, "max_block_s": 0.1, "max_gap_s": 0.2, "num_events": 2}
GOOD = {**CHEAP, "event_delays_s": [0.5, 3.0], "calls": [10] * 6}
SLEEP = {**CHEAP, "cpu_s": 1.0, "event_delays_s": [0.5, 4.0], "calls": []}
SETUP = bench.Setup(num_triggers=10, poll_interval_s=5.0, window_s=30.0, num_ends=2, seeds=(1,))


@pytest.mark.timeout(400)
def test_short_form_measures_real_triggers_in_airflows_own_runner(tmp_path):
    results = tmp_path / "results" / "airflow.json"
    argv = ["--triggers=100", "--poll-interval=1", "--window=8", "--seeds=1", f"--results={results}"]
    code = bench.main(argv)
    stored = json.loads(results.read_text())
    rows = {row["name"]: row for row in stored["rows"]}
    (run,) = stored["runs"]
    assert run["gang"]["num_events"] == run["sleep"]["num_events"] == 5
    assert rows["calls of the engine per interval"]["value"] < 2.0
    assert rows["longest block of the loop"]["value"] < bench.MAX_BLOCK_S
    missed = [row for row in stored["rows"] if not row["reached"]]
    assert code == (1 if missed else 0)


def test_figures_within_their_limits_are_not_missed():
    rows = bench.rows_of(SETUP, [(SLEEP, GOOD)])
    assert [row.name for row in rows if not row.reached] == []
    assert next(row.value for row in rows if row.unit == "x") == pytest.approx(1.2)
    assert next(row.value for row in rows if row.name.startswith("calls")) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("worse", "name"),
    [
        ({"cpu_s": 1.5}, "CPU, against the reference"),
        ({"max_block_s": 0.21}, "longest block of the loop"),
        ({"event_delays_s": [0.5, 6.1]}, "latest event"),
        ({"event_delays_s": [float("inf")]}, "latest event"),
    ],
)
def test_missed_figure_is_named(worse, name):
    rows = bench.rows_of(SETUP, [(SLEEP, {**GOOD, **worse})])
    assert [row.name for row in rows if not row.reached] == [name]


def test_missed_figure_is_exit_1_and_in_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "measure", lambda form, *_: SLEEP if form == "sleep" else {**GOOD, "cpu_s": 2.0})
    results = tmp_path / "airflow.json"
    assert bench.main([f"--results={results}", "--seeds=2"]) == 1
    told = capsys.readouterr()
    assert "CPU, against the reference" in told.err
    assert "MISSED" in told.out
    assert len(json.loads(results.read_text())["runs"]) == 2
