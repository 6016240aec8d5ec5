from __future__ import annotations

from pathlib import Path

from airflow_llmsched.reports import files


def test_a_whole_run_is_reported_in_a_page_and_in_json(pipeline):
    pipeline.prepare()
    for name in ("run_gang", "evaluate_checkpoint", "release"):
        pipeline.run(name)
    result = pipeline.run("report")
    assert Path(result["html"]).read_text().startswith("<!doctype html>")
    report = files.read(Path(result["json"]))
    assert result["outcome"] == report.outcome == "succeeded"
    assert result["num_attempts"] == len(report.attempts) == 1
    assert result["usd"] == report.usd > 0
    assert result["ettr_ratio"] == round(report.ledger.ettr_ratio, 4) > 0


def test_the_ledger_ends_with_the_report_itself(pipeline):
    pipeline.run("open_run")
    report = files.read(Path(pipeline.run("report")["json"]))
    assert report.ledger.wall_s == sum(report.ledger.totals_s.values())
    last = max((event.span for event in pipeline.journal()), key=lambda span: span.end_s)
    assert last.label == "pretraining.report"


def test_reporting_twice_replaces_the_files(pipeline):
    pipeline.run("open_run")
    first = pipeline.run("report")
    again = pipeline.run("report")
    assert (first["html"], first["json"]) == (again["html"], again["json"])
    assert files.read(Path(again["json"])).ledger.wall_s >= 0
