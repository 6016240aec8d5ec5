from __future__ import annotations

from types import SimpleNamespace

from airflow_llmsched.provider.links import RunReportLink


def test_link_leads_to_the_runs_report():
    link = RunReportLink().get_link(SimpleNamespace(run_key="ls-abc"), ti_key=None)
    assert link == "/llmsched/runs/ls-abc/report"


def test_link_is_empty_before_the_run_is_known():
    assert RunReportLink().get_link(SimpleNamespace(run_key=None), ti_key=None) == ""
