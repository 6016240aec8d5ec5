from __future__ import annotations

import json
import time

import pytest
from airflow.api_fastapi.app import _AuthManagerState
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_llmsched.provider.web import REPORT_HEADERS, build_app

KEYS = {name: "ls-" + name * 20 for name in "abcd"}
READABLE = {"ann": {"mine", "<b>odd</b>"}, "bob": {"other"}}


class Manager(SimpleAuthManager):
    """Airflow's own manager, with users who may read some DAGs only."""

    def get_authorized_dag_ids(self, *, user, **_asked):
        return READABLE.get(user.get_name(), set())


@pytest.fixture
def manager(airflow_db, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "not a secret " * 8)
    made = Manager()
    monkeypatch.setattr(_AuthManagerState, "instance", made)
    return made


@pytest.fixture
def visit(manager, state_root):
    """Returns a page as ``user`` sees it; None is nobody."""
    client = TestClient(build_app(), raise_server_exceptions=True)

    def get(path, user="ann", role="viewer"):
        if user is None:
            return client.get(path)
        token = manager.generate_jwt(SimpleAuthManagerUser(username=user, role=role))
        return client.get(path, headers={"Authorization": f"Bearer {token}"})

    return get


def _run(state_root, name, *, dag_id, run_id="manual__1", at_s=0.0, report=None, **summary):
    folder = state_root / "runs" / KEYS[name]
    folder.mkdir(parents=True)
    stored = {"dag_id": dag_id, "run_id": run_id, "phase": "watching", "attempt": 1, "updated_at_s": at_s, **summary}
    (folder / "summary.json").write_text(json.dumps(stored))
    if report is not None:
        (folder / "report.html").write_text(report)
    return KEYS[name]


def _paths():
    routes = [route for route in build_app().routes if isinstance(route, APIRoute)]
    assert len(routes) == len(build_app().routes) >= 3  # nothing beside what is checked here: no docs, no static files
    return [route.path.format(run_key=KEYS["a"], dag_id="mine", run_id="manual__1") for route in routes]


@pytest.mark.parametrize("path", _paths())
def test_nobody_reads_anything_without_logging_in(visit, state_root, path):
    _run(state_root, "a", dag_id="mine", report="secret")
    answer = visit(path, user=None)
    assert answer.status_code == 401
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", _paths())
def test_a_user_without_a_role_is_refused(visit, state_root, path):
    _run(state_root, "a", dag_id="mine", report="secret")
    answer = visit(path, role=None)
    assert answer.status_code == 403
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", _paths())
def test_every_page_forbids_what_it_does_not_need(visit, state_root, path):
    _run(state_root, "a", dag_id="mine", report="<p>fine</p>")
    answer = visit(path)
    assert answer.status_code == 200
    assert {name: answer.headers[name] for name in REPORT_HEADERS} == REPORT_HEADERS
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", _paths())
def test_no_page_changes_anything(visit, state_root, manager, path):
    client = TestClient(build_app())
    assert {client.request(method, path).status_code for method in ("POST", "PUT", "PATCH", "DELETE")} == {405}


def test_the_list_shows_runs_of_readable_dags_newest_first(visit, state_root):
    old = _run(state_root, "a", dag_id="mine", run_id="old", at_s=1.0)
    new = _run(state_root, "b", dag_id="mine", run_id="new", at_s=2.0)
    hidden = _run(state_root, "c", dag_id="other")
    page = visit("/runs").text
    assert page.index(new) < page.index(old)
    assert hidden not in page
    assert "other" not in page
    assert hidden in visit("/runs", user="bob").text


def test_the_list_shows_how_far_each_run_has_come(visit, state_root):
    _run(
        state_root, "a", dag_id="mine", at_s=86400.0, workload="gpt", last_step=70, checkpoint_step=65, world_size=None
    )
    page = visit("/runs").text
    for cell in ("gpt", "70", "65", "—", "1970-01-02 00:00"):
        assert f"<td>{cell}</td>" in page


def test_an_empty_list_says_what_to_do(visit):
    assert "pretraining_task_group" in visit("/runs").text


def test_a_report_is_served_to_who_may_read_its_dag_only(visit, state_root):
    key = _run(state_root, "a", dag_id="mine", report="<p>the report</p>")
    for path in (f"/runs/{key}/report", "/dags/mine/runs/manual__1/report"):
        assert visit(path).text == "<p>the report</p>"
        refused, unknown = visit(path, user="bob"), visit(path.replace(key, KEYS["d"]).replace("manual__1", "none"))
        assert (refused.status_code, refused.text) == (404, unknown.text)
        assert unknown.status_code == 404


@pytest.mark.parametrize(
    "key",
    ["..", "%2e%2e", "ls-../../../../etc", "ls-" + "A" * 20, "ls-" + "a" * 21, "ls-" + "a" * 19 + "%0a", "..%2f.."],
)
def test_a_key_that_is_none_never_becomes_a_path(visit, state_root, key):
    (state_root / "report.html").parent.mkdir(parents=True, exist_ok=True)
    (state_root / "summary.json").write_text(json.dumps({"dag_id": "mine"}))
    (state_root / "report.html").write_text("outside")
    answer = visit(f"/runs/{key}/report")
    assert answer.status_code == 404
    assert "outside" not in answer.text


def test_names_cannot_become_markup(visit, state_root):
    _run(state_root, "a", dag_id="<b>odd</b>", run_id="<script>alert(1)</script>", phase="<i>x</i>", attempt="<u>")
    for page in (visit("/runs").text, visit(f"/runs/{KEYS['a']}/report").text):
        assert "&lt;i&gt;x" in page
        assert not any(tag in page for tag in ("<script", "<b>odd", "<i>", "<u>"))


def test_a_run_under_way_shows_its_phase_instead_of_a_report(visit, state_root):
    key = _run(state_root, "a", dag_id="mine")
    assert "written when the run ends" in visit(f"/runs/{key}/report").text


def test_a_dag_run_with_several_groups_lists_them(visit, state_root):
    keys = [_run(state_root, name, dag_id="mine", report="x") for name in "ab"]
    page = visit("/dags/mine/runs/manual__1/report").text
    assert all(f"/llmsched/runs/{key}/report" in page for key in keys)
    assert visit("/dags/mine/runs/manual__1/report", user="bob").status_code == 404


@pytest.mark.parametrize(
    "damaged",
    [
        *("", "{", "[1]", "7", "null", '{"dag_id": "mine", "updated_at_s": "soon"}'),
        *(f'{{"dag_id": "mine", "updated_at_s": {number}}}' for number in ("NaN", "1e300", "-1e300")),
    ],
)
def test_a_damaged_summary_breaks_no_page(visit, state_root, damaged):
    good = _run(state_root, "a", dag_id="mine", at_s=time.time())
    (state_root / "runs" / KEYS["b"]).mkdir()
    (state_root / "runs" / KEYS["b"] / "summary.json").write_text(damaged)
    assert good in visit("/runs").text


def test_a_run_that_asks_says_so_on_its_page_and_in_the_list_with_the_command_that_answers(visit, state_root):
    key = _run(state_root, "a", dag_id="mine", asks="<b>$12</b> too much")
    for path in (f"/runs/{key}/report", "/runs"):
        text = visit(path).text
        assert "It waits for an answer" in text
        assert "<b>$12</b>" not in text
        assert f"llmsched budget {key} --max-usd N" in text


def test_a_run_that_asks_nothing_says_nothing_of_it(visit, state_root):
    key = _run(state_root, "a", dag_id="mine", asks="")
    assert "waits for an answer" not in visit(f"/runs/{key}/report").text


def test_a_run_that_waits_says_why_on_its_page_and_in_the_list(visit, state_root):
    reason = "waits in the queue (capacity): needs <8>"
    key = _run(state_root, "a", dag_id="mine", phase="waiting", reason=reason)
    for path in ("/runs", f"/runs/{key}/report"):
        assert "waits in the queue (capacity): needs &lt;8&gt;" in visit(path).text


def test_what_a_run_waited_for_once_is_not_shown_while_it_trains(visit, state_root):
    _run(state_root, "a", dag_id="mine", phase="watching", reason="waits in the queue")
    assert "waits in the queue" not in visit("/runs").text
