"""The reaper as a DAG whose engine and limits a test chooses."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_llmsched.provider.operators.reap import ReapOperator

with DAG("reaping", schedule=None, params={"root": "/nowhere", "dry_run": True}):
    ReapOperator(
        task_id="reap",
        engine_options={"root": "{{ params.root }}"},
        only_report="{{ params.dry_run }}",
        silence_s=1.5,
        unleased_s=0.0,
    )
