"""Find what has outlived its run, once an hour: gangs, and rented machines. It only reports until ``dry_run`` is off.

Leases and teardowns end gangs in time; this is the net below them. It is off by default because what it does cannot be
undone, and because a wrong state root or engine option should be seen in a report first, not in a gang that is gone.
Read one report, then set the default of ``dry_run`` below to False.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG, Param

from airflow_llmsched.provider.operators.reap import ReapOperator

with DAG(
    dag_id="reap",
    schedule=datetime.timedelta(hours=1),
    catchup=False,
    max_active_runs=1,
    params={"dry_run": Param(True, type="boolean", title="Only report what would be stopped")},
    doc_md=__doc__,
    tags=["llmsched"],
):
    # One task for each engine that pipelines of this deployment use, with the options they use. Where they rent, name
    # the clouds too, as they do: clouds={"aws": {"regions": ["us-east-1"], "conn_id": "aws_default"}}. Machines whose
    # lease has run out, because nobody renewed it, are then given back.
    ReapOperator(
        task_id="reap_local",
        engine="local",
        engine_options={"num_nodes": 2, "slots_per_node": 2},
        only_report="{{ params.dry_run }}",
        retries=2,
    )
