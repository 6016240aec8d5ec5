"""The whole pipeline with a trainer that needs no PyTorch, deferrable and blocking. Params change its spec."""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path

from airflow.sdk import DAG, Asset

from airflow_llmsched import effect_points
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
capacity: {min_ranks: {{ params.min_ranks }}, max_ranks: {{ params.max_ranks }}}
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


def befall(point: str, side: effect_points.Side) -> None:
    """Do to this worker what the test has written down for its task and this effect, once: let it die, hang or wait."""
    task = os.environ.get("AIRFLOW_CTX_TASK_ID", "").rpartition(".")[2]
    plan = Path(state_root()) / "trouble" / f"{os.environ.get('AIRFLOW_CTX_DAG_RUN_ID')}+{task}.json"
    if not plan.exists():
        return
    wanted = json.loads(plan.read_text())
    if wanted["at"] != [point, side]:
        return
    plan.rename(plan.with_suffix(".done"))
    if wanted["what"] == "wait":
        while not Path(wanted["until"]).exists():
            time.sleep(0.1)
        return
    if wanted["what"] == "hang":
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


effect_points.listen(befall)

# A secret of an Airflow variable, as people write it; or, on demand, where everyone could read it.
SECRET_SPEC = SPEC.replace(
    "launcher:\n",
    """launcher:
  environment:
    HF_TOKEN: "{{ var.json.creds.token }}"
    OTHERS: '[{"name": "HF_TOKEN", "value": "{{ var.json.creds.token }}"}]'
""",
).replace(
    "{{ params.arguments }}",
    "{{ params.arguments }}{% if params.in_argument %}, {{ var.json.creds.token }}{% endif %}",
)

PARAMS = {
    "name": "plain",
    "steps": 12,
    "arguments": '"--step-s=0.02"',
    "max_loss": 5.0,
    "min_ranks": 2,
    "max_ranks": 4,
    "release_root": "",
    "in_argument": False,
    "cloud_address": "",
}
MACHINE = {"num_nodes": 2, "slots_per_node": 2}
# A machine for each DAG run, so that runs at once do not wait for each other; ``release`` can be sent to a broken one.
OWN_ROOT = (
    "{% if params.release_root and task.task_id == 'pretraining.release' %}{{ params.release_root }}"
    "{% else %}" + state_root() + "/engines/{{ run_id }}{% endif %}"
)
OWN_MACHINE = {**MACHINE, "root": OWN_ROOT}


# Two machines of a cloud that a test serves; the Airflow connection has the keys.
RENTED = {
    "clouds": {
        "aws": {
            "conn_id": "rented",
            "regions": ["us-east-1"],
            "image": "ami-0123456789abcdef0",
            "consistency_s": 2,
            "endpoint_url": "{{ params.cloud_address }}",
        }
    },
    "shapes": {"p4d.24xlarge": {"num_nodes": 2, "work": "1h"}},
    "capacity_types": ["on_demand"],
    "poll_interval_s": 1.0,
    "retries": 1,
}


def _dag(
    dag_id: str,
    *,
    deferrable: bool,
    spec=SPEC,
    machine=MACHINE,
    engine="local",
    retries: int | None = None,
    rented: dict | None = None,
    **gang_arguments,
) -> None:
    defaults = {"on_failure_callback": note_failure, "retry_delay": datetime.timedelta(seconds=1)}
    defaults |= {} if retries is None else {"retries": retries}
    with DAG(dag_id, schedule=None, params=PARAMS, default_args=defaults):
        pretraining_task_group(
            spec=spec,
            allow_inline=True,
            engine=engine,
            engine_options=machine,
            deferrable=deferrable,
            checkpoint_asset=Asset(f"llmsched://checkpoints/{dag_id}"),
            gang_arguments={"poll_interval_s": 0.5, "multiple_outputs": True, **gang_arguments},
            capacity_arguments=rented,
        )


_dag("plain_deferrable", deferrable=True)
_dag("plain_blocking", deferrable=False)
_dag("lifecycle_deferrable", deferrable=True, machine=OWN_MACHINE, retries=0)
_dag("lifecycle_blocking", deferrable=False, machine=OWN_MACHINE, retries=1)
_dag(
    "lifecycle_limited",
    deferrable=True,
    machine=OWN_MACHINE,
    retries=0,
    execution_timeout=datetime.timedelta(seconds=30),
)
_dag("lifecycle_impatient", deferrable=True, machine=OWN_MACHINE, retries=1, max_look_errors=2)
_dag("lifecycle_secret", deferrable=True, spec=SECRET_SPEC, machine=OWN_MACHINE, retries=0)
_dag("renting", deferrable=True, machine=OWN_MACHINE, retries=0, rented=RENTED)
if "TEST_HOSTS" in os.environ:
    _dag("plain_on_hosts", deferrable=True, engine="hosts", machine=json.loads(os.environ["TEST_HOSTS"]), lease_s=40.0)
if "TEST_SLURM" in os.environ:
    _dag("plain_on_slurm", deferrable=True, engine="slurm", machine=json.loads(os.environ["TEST_SLURM"]))
