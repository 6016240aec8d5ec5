"""Runs DAGs of ``tests/integration/dags`` in a process of their own by ``dag.test()``: tasks and triggers run in line.

As a script: ``python dag_runs.py FOLDER`` reads ``[[dag id, conf], ...]`` from standard input and writes what came of
each to ``FOLDER/results.json``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DAGS = Path(__file__).resolve().parents[1] / "integration" / "dags"


def run_dags(folder: Path, runs: list[tuple[str, dict[str, Any]]], *, limit_s: float = 240) -> list[dict[str, Any]]:
    """Run each (dag id, conf) and return its state, its tasks' states and XComs, and what failed, in order."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW_CONFIG": str(folder / "airflow" / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__LLMSCHED__STATE_ROOT": str(folder / "state"),
        "AIRFLOW__LLMSCHED__MIN_DEFERRAL": "0",
    }
    (folder / "airflow").mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("wb") as log:
        subprocess.run(
            [sys.executable, __file__, str(folder)],
            input=json.dumps(runs).encode(),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=limit_s,
            check=True,
        )
    results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return results


def _main(folder: Path) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    results = []
    for dag_id, conf in json.load(sys.stdin):
        # dag.test() writes the conf into the DAG's own params, so each run gets the DAG anew.
        bag = DagBag(str(DAGS), bundle_path=DAGS, bundle_name="dags-folder")
        if bag.import_errors:
            raise SystemExit(str(bag.import_errors))
        results.append(_run(bag.get_dag(dag_id), conf, folder))
    (folder / "results.json").write_text(json.dumps(results))


def _run(dag: Any, conf: dict[str, Any], folder: Path) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    run = dag.test(run_conf=conf)
    with create_session() as session:
        rows = session.scalars(select(XComModel).where(XComModel.run_id == run.run_id)).all()
        xcoms = [[row.task_id, row.key, row.value] for row in rows]
    noted = folder / "state" / "failures.jsonl"
    failures = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    return {
        "state": str(run.state),
        "tasks": {ti.task_id.rpartition(".")[2]: str(ti.state) for ti in run.get_task_instances()},
        "xcoms": {f"{task_id.rpartition('.')[2]}/{key}": value for task_id, key, value in xcoms},
        "failures": [each for each in failures if each["run_id"] == run.run_id],
    }


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
