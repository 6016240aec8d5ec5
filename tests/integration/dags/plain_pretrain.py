"""The whole pipeline with a trainer that needs no PyTorch, deferrable and blocking. Params change its spec."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow.sdk import DAG, Asset

from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.task_group import pretraining_task_group

CHECKOUT = Path(__file__).resolve().parents[3]
TRAINER = [sys.executable, str(CHECKOUT / "tests" / "support" / "plain_trainer.py")]

SPEC = """
version: 1
name: {{ params.name }}
data: {kind: files, source: corpus, held_out: 20%%}
batch: {sequence_length: 2, global_batch: 4 sequences}
budget: {steps: {{ params.steps }}}
communication: {version: 1, traffic: [{group: trainer, group_size: 2, collective: all_reduce, bytes_per_step: 1MiB}]}
memory: {version: 1, tiers: [{tier: hbm, bytes_per_rank: 1MiB}]}
capacity: {min_ranks: 2, max_ranks: 4}
checkpoint: {interval_steps: 5, format: dcp}
launcher:
  kind: plain
  command: [%(trainer)s, --steps, "{{ params.steps }}", {{ params.arguments }}]
  start_limit: 60s
  grace: 2s
evaluation:
  command: [%(trainer)s, --evaluate]
  max_loss: {{ params.max_loss }}
retries: {code: 0}
""" % {"trainer": ", ".join(TRAINER)}  # noqa: UP031 - the text is full of braces


def note_failure(context) -> None:
    """Keep what a task failed with where a test can read it."""
    note = {"task_id": context["ti"].task_id, "type": type(context["exception"]).__name__}
    note |= {"message": str(context["exception"]), "run_id": context["ti"].run_id}
    with (Path(state_root()) / "failures.jsonl").open("a") as file:
        file.write(json.dumps(note) + "\n")


PARAMS = {"name": "plain", "steps": 12, "arguments": '"--step-s=0.02"', "max_loss": 5.0}


def _dag(dag_id: str, *, deferrable: bool) -> None:
    with DAG(dag_id, schedule=None, params=PARAMS, default_args={"on_failure_callback": note_failure}):
        pretraining_task_group(
            spec=SPEC,
            allow_inline=True,
            engine_options={"num_nodes": 2, "slots_per_node": 2},
            deferrable=deferrable,
            checkpoint_asset=Asset(f"llmsched://checkpoints/{dag_id}"),
            gang_arguments={"poll_interval_s": 0.5, "multiple_outputs": True},
        )


_dag("plain_deferrable", deferrable=True)
_dag("plain_blocking", deferrable=False)
