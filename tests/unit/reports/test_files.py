from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_llmsched.domain.run_report import RunReport
from airflow_llmsched.errors import DataError
from airflow_llmsched.reports import files
from airflow_llmsched.reports.build import build_report
from tests.support.history import preempted_run


@pytest.fixture(scope="module")
def finished() -> RunReport:
    return build_report(**preempted_run())


def test_a_report_is_read_back_as_it_was_written(finished, tmp_path):
    html_path, json_path = files.write(finished, tmp_path / "runs" / "one")
    assert html_path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert files.read(json_path) == finished
    assert files.read(json_path.parent) == finished
    assert sorted(path.name for path in json_path.parent.iterdir()) == ["report.html", "report.json"]


def test_the_json_carries_its_version(finished):
    assert json.loads(files.to_json(finished))["v"] == 1


def test_writing_again_replaces_the_report(finished, tmp_path):
    files.write(finished, tmp_path)
    files.write(replace(finished, reason="again"), tmp_path)
    assert files.read(tmp_path).reason == "again"


def test_a_write_that_fails_leaves_the_old_report_and_no_litter(finished, tmp_path, monkeypatch):
    files.write(finished, tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        files.write(replace(finished, reason="again"), tmp_path)
    assert files.read(tmp_path) == finished
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_only_the_page_can_be_written_elsewhere(finished, tmp_path):
    files.write_html(finished, tmp_path / "a" / "page.html")
    assert "tiny-gpt" in (tmp_path / "a" / "page.html").read_text(encoding="utf-8")


def test_an_absent_report_is_said_to_be_absent(tmp_path):
    with pytest.raises(DataError, match="no report at"):
        files.read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        '{"v":2,"report":{}}',
        '{"report":{}}',
        '{"v":1,"report":{"names":1}}',
        '{"v":1,"report":%s}' % ("[" * 5_000 + "]" * 5_000),
    ],
    ids=range(6),
)
def test_a_damaged_or_foreign_report_is_refused(content, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"report\.json"):
        files.read(path)
