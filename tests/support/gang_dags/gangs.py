"""Many small gangs in one DAG run, each a run of its own: opened by one task and released by one, to be quick.

A gang stands still after step 7 until the file ``<hold>/<its task's id>`` exists.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.operators.dataset import StageDatasetOperator
from airflow_llmsched.provider.operators.gang import RunGangOperator
from airflow_llmsched.provider.operators.open_run import OpenRunOperator
from airflow_llmsched.provider.operators.release import ReleaseOperator

TRAINER = Path(__file__).resolve().parents[1] / "plain_trainer.py"
NUM_GANGS = "LLMSCHED_TEST_NUM_GANGS"
ENGINES = state_root() + "/engines/{{ run_id }}"

SPEC = f"""
version: 1
name: small
data: {{kind: files, source: {Path(__file__).parent / "corpus"}, held_out: 20%}}
batch: {{sequence_length: 2, global_batch: 4 sequences}}
budget: {{steps: 12}}
communication: {{version: 1, traffic: []}}
memory: {{version: 1, tiers: [{{tier: hbm, bytes_per_rank: 1MiB}}]}}
capacity: {{min_ranks: 1, max_ranks: 1}}
checkpoint: {{interval_steps: 5, format: dcp}}
launcher:
  kind: plain
  command:
    [{sys.executable}, {TRAINER}, --steps=12, --step-s=0.02, --hold-at=7, "--hold={{{{ params.hold }}}}/@GANG@"]
  start_limit: 120s
  hang_limit: @HANG_LIMIT@
  grace: 2s
retries: {{code: 0}}
"""


class OpenAll(OpenRunOperator, StageDatasetOperator):
    """Opens a run for each of ``scopes`` and stages its data."""

    def __init__(self, *, scopes: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scopes = scopes

    def execute(self, context: Any) -> dict[str, str]:
        keys, spec = {}, str(self.spec)
        for scope in self.scopes:
            self.run_scope = scope
            self.spec = spec.replace("@GANG@", scope)
            keys[scope] = OpenRunOperator.execute(self, context)["run_key"]
            StageDatasetOperator.execute(self, context)
        return keys


class ReleaseAll(ReleaseOperator):
    """Releases the run of each of ``scopes``, each on the machine that is its own."""

    def __init__(self, *, scopes: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scopes = scopes

    def execute(self, context: Any) -> dict[str, list[str]]:
        root, stopped = self.engine_options["root"], {}
        for scope in self.scopes:
            self.run_scope = scope
            self.engine_options = {**self.engine_options, "root": f"{root}/{scope}"}
            stopped[scope] = super().execute(context)["stopped"]
        return stopped


def gangs(
    dag_id: str,
    *,
    num_gangs: int,
    retries: int = 2,
    hang_limit: str = "300s",
    retry_delay: datetime.timedelta = datetime.timedelta(seconds=1),
    **gang_arguments: Any,
) -> None:
    """Make a DAG of that many gangs, ``gang-01`` and so on, each with a machine of one slot."""
    scopes = [f"gang-{number:02d}" for number in range(1, num_gangs + 1)]
    machine = {"num_nodes": 1, "slots_per_node": 1}
    defaults = {"retries": retries, "retry_delay": retry_delay}
    with DAG(dag_id, schedule=None, params={"hold": "/"}, default_args=defaults):
        opened = OpenAll(
            task_id="open", scopes=scopes, spec=SPEC.replace("@HANG_LIMIT@", hang_limit), allow_inline=True
        ).as_setup()
        trained = [
            RunGangOperator(
                task_id=scope,
                run_scope=scope,
                engine_options={**machine, "root": f"{ENGINES}/{scope}"},
                **{"poll_interval_s": 1.0, **gang_arguments},
            )
            for scope in scopes
        ]
        released = ReleaseAll(task_id="release", scopes=scopes, engine_options={**machine, "root": ENGINES})
        opened >> trained >> released.as_teardown(setups=opened, on_failure_fail_dagrun=True)


gangs("gangs", num_gangs=20)
gangs("gangs_on_a_short_lease", num_gangs=20, lease_s=40.0)
gangs("gangs_in_a_pool", num_gangs=1, lease_s=40.0, pool="gangs", poll_interval_s=0.5, max_look_errors=1)

# For the crash harness: retried late enough that a test can do something else about a task first, and read often.
SHOT: dict[str, Any] = {
    "retry_delay": datetime.timedelta(seconds=10),
    "retries": 3,
    "hang_limit": "60s",
    "lease_s": 30.0,
    "max_look_errors": 1,
}
gangs("shot", num_gangs=int(os.environ.get(NUM_GANGS) or 1), **SHOT)
gangs("shot_recorded", num_gangs=3, **SHOT)
gangs("shot_alone", num_gangs=1, **{**SHOT, "lease_s": 900.0})  # it must live to see its teardown
