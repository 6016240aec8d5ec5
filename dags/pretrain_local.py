"""Pretrain a byte-level GPT on this machine: two emulated nodes of two slots each. ``make demo`` triggers this DAG.

For a cluster, change ``engine`` and ``engine_options``; the spec stays as it is.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_llmsched.provider.params import pretraining_params
from airflow_llmsched.provider.task_group import pretraining_task_group

CHECKPOINT = Asset("llmsched://checkpoints/byte-gpt")

with DAG(
    dag_id="pretrain_local",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=pretraining_params("specs/byte_gpt_demo.yaml"),
    doc_md=__doc__,
    tags=["llmsched"],
):
    pretraining_task_group(
        engine="local",
        engine_options={"num_nodes": 2, "slots_per_node": 2},
        checkpoint_asset=CHECKPOINT,
        gang_arguments={"poll_interval_s": 1.0},
    )
