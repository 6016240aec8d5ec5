"""Report pages inside the API server. Read-only; every route needs a viewer who may read the run's DAG.

No ``from __future__ import annotations`` here: FastAPI reads the annotations of functions defined inside ``build_app``.
"""

import html
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from airflow_llmsched import codec
from airflow_llmsched.control.allowances import answer_command
from airflow_llmsched.provider.config import state_root

RUN_KEY = re.compile(r"ls-[a-z2-7]{20}")
MAX_LISTED_RUNS = 500
LATEST_S = 253402300800.0  # the year 10000, beyond which no calendar of Python's reaches
COLUMNS = {
    "Workload": "workload",
    "DAG": "dag_id",
    "Run": "run_id",
    "Phase": "phase",
    "Step": "last_step",
    "Checkpoint": "checkpoint_step",
    "Ranks": "world_size",
    "Attempt": "attempt",
}
_IDLE = ("waiting", "yielding")
"""Phases of ``control.run_state`` whose reason says what a run does instead of training."""

# The report is one file of ours with inline script and style, and needs nothing from anywhere else.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def build_app() -> FastAPI:
    """Build the app that the plugin mounts at ``/llmsched``."""
    app = FastAPI(
        title="llmsched",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    )

    @app.get("/runs", response_class=HTMLResponse)
    def runs(user: GetUserDep) -> HTMLResponse:
        shown = _readable(_summaries(), user)[:MAX_LISTED_RUNS]
        return HTMLResponse(_runs_page(shown), headers=REPORT_HEADERS)

    @app.get("/runs/{run_key}/report", response_class=HTMLResponse)
    def report(run_key: str, user: GetUserDep) -> HTMLResponse:
        found = _summary(run_key) if RUN_KEY.fullmatch(run_key) else None
        return _answer([] if found is None else _readable([found], user))

    @app.get("/dags/{dag_id}/runs/{run_id}/report", response_class=HTMLResponse)
    def report_of_dag_run(dag_id: str, run_id: str, user: GetUserDep) -> HTMLResponse:
        mine = [each for each in _summaries() if each.get("dag_id") == dag_id and each.get("run_id") == run_id]
        return _answer(_readable(mine, user))

    return app


def _answer(runs: list[dict[str, Any]]) -> HTMLResponse:
    """Show the one report there is, or a list: each task group of a DAG is a run of ours.

    A run that is absent and one that the viewer may not read answer alike, so that names cannot be probed.
    """
    if not runs:
        raise HTTPException(404, "no such run")
    if len(runs) > 1:
        return HTMLResponse(_runs_page(runs), headers=REPORT_HEADERS)
    path = Path(state_root()) / "runs" / runs[0]["run_key"] / "report.html"
    if path.is_file():
        return HTMLResponse(path.read_text(encoding="utf-8"), headers=REPORT_HEADERS)
    phase = html.escape(str(runs[0].get("phase", "unknown")))
    waits = _waits(runs[0])
    body = f"<p>The report is written when the run ends. Phase now: <b>{phase}</b>.</p>{waits}{_asks(runs[0])}"
    return HTMLResponse(_page("Pretraining report", body), headers=REPORT_HEADERS)


def _readable(summaries: list[dict[str, Any]], user: Any) -> list[dict[str, Any]]:
    dag_ids = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return [each for each in summaries if each.get("dag_id") in dag_ids]


def _summary(run_key: str) -> dict[str, Any] | None:
    path = Path(state_root()) / "runs" / run_key / "summary.json"
    try:
        summary = codec.parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {**summary, "run_key": run_key} if isinstance(summary, dict) else None


def _summaries() -> list[dict[str, Any]]:
    """Return every run's summary, the one that changed last first."""
    keys = (path.parent.name for path in (Path(state_root()) / "runs").glob("ls-*/summary.json"))
    found = [summary for key in keys if RUN_KEY.fullmatch(key) and (summary := _summary(key)) is not None]
    return sorted(found, key=_updated_at_s, reverse=True)


def _updated_at_s(summary: dict[str, Any]) -> float:
    at_s = summary.get("updated_at_s")
    return at_s if isinstance(at_s, int | float) and 0.0 <= at_s < LATEST_S else 0.0


def _runs_page(summaries: list[dict[str, Any]]) -> str:
    if not summaries:
        return _page(
            "Pretraining runs", "<p>No run yet. Trigger a DAG that uses <code>pretraining_task_group</code>.</p>"
        )
    head = "".join(f"<th>{title}</th>" for title in (*COLUMNS, "Changed (UTC)", ""))
    rows = "".join(f"<tr>{_cells(each)}</tr>" for each in summaries)
    return _page("Pretraining runs", f"<table><tr>{head}</tr>{rows}</table>")


def _cells(summary: dict[str, Any]) -> str:
    values = [summary.get(name) for name in COLUMNS.values()]
    changed = datetime.fromtimestamp(_updated_at_s(summary), UTC)
    cells = [
        html.escape("—" if value in (None, "") else str(value)) for value in (*values, f"{changed:%Y-%m-%d %H:%M}")
    ]
    link = f'<a href="/llmsched/runs/{summary["run_key"]}/report">report</a>'
    cells.append(f"{link}{_waits(summary)}{_asks(summary)}")
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _waits(summary: dict[str, Any]) -> str:
    """Return why a run has no gang now: what it waits for, or whom it makes room for; empty: it has no reason to."""
    reason = summary.get("reason")
    if summary.get("phase") not in _IDLE or not reason or not isinstance(reason, str):
        return ""
    return f"<p>{html.escape(reason)}</p>"


def _asks(summary: dict[str, Any]) -> str:
    """Return what the run waits to be told about its budget, and how to tell it; empty: nothing."""
    asks = summary.get("asks")
    if not asks or not isinstance(asks, str):
        return ""
    command = html.escape(answer_command(summary["run_key"]))
    return f"<p>It waits for an answer: <b>{html.escape(asks)}</b>. Answer with <code>{command}</code>.</p>"


def _page(title: str, body: str) -> str:
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem;color-scheme:light dark}h1{font-size:1.5rem}"
        "table{border-collapse:collapse;width:100%}td,th{padding:.45rem .8rem;text-align:left;"
        "border-bottom:1px solid #8884}th{font-weight:600;opacity:.7}td{font-variant-numeric:tabular-nums}"
    )
    return f"<!doctype html><title>{title}</title><style>{style}</style><h1>{title}</h1>{body}"
