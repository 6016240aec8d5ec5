"""Keep what clouds offer and charge, once an hour: prices are then known that a cloud does not tell when it is asked.

Name the clouds that your pipelines rent from, with the options they use, such as ``"conn_id": "aws_default"``.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG

from airflow_llmsched.provider.operators.market import MarketSnapshotOperator

with DAG(
    dag_id="refresh_market",
    schedule=datetime.timedelta(hours=1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["llmsched"],
):
    MarketSnapshotOperator(task_id="snapshot", clouds={"aws": {"regions": ["us-east-1"]}}, shapes=["p5.48xlarge"])
