"""The DAG-run form: what a person may set when pressing Trigger."""

from __future__ import annotations

from airflow.sdk import Param

AS_IN_SPEC = "as in the spec"

OBJECTIVES = ("throughput", "cost", "latency", "fairness", "reliability", "energy")


def pretraining_params(spec: str) -> dict[str, Param]:
    """Return the form's fields for a DAG of :func:`pretraining_task_group`; ``spec`` is the default spec file."""
    return {
        "spec": Param(
            spec,
            type="string",
            minLength=1,
            maxLength=65536,
            title="Workload spec",
            description="A YAML file below the DAG's folder.",
        ),
        "objective": Param(
            AS_IN_SPEC,
            type="string",
            enum=[AS_IN_SPEC, *OBJECTIVES],
            title="Objective",
            description="What to favour when choosing layout and placement.",
        ),
        "deadline": Param(
            None,
            type=["null", "string"],
            pattern=r"^\s*\d+(\.\d+)?\s*(s|min|h|d)\s*$",
            title="Deadline",
            description="Time from the run's start after which it is stopped with a checkpoint, e.g. 36h.",
        ),
        "max_usd": Param(
            None,
            type=["null", "number"],
            exclusiveMinimum=0,
            title="Budget (USD)",
            description="The most this run may spend.",
        ),
    }
