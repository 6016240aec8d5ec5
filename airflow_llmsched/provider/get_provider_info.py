"""Provider metadata. Static and cheap: Airflow calls this in every process."""

from __future__ import annotations

from typing import Any

_OPERATORS = "airflow_llmsched.provider.operators"

_OPTIONS: dict[str, Any] = {
    "state_root": {
        "description": (
            "Folder shared by workers, triggerers, API server and gang nodes. Journals, channels, datasets, "
            "checkpoints and reports of all runs live below it. Each Airflow deployment needs its own: runs of one "
            "name would be one run to both. Empty: $AIRFLOW_HOME/llmsched."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "/mnt/shared/llmsched",
        "default": "",
    },
    "min_deferral": {
        "description": (
            "Seconds for which a task stays deferred at least. Must exceed [workers] min_heartbeat_interval by a "
            "scheduler loop: Airflow 3.3 fails a task that resumes before it has seen the end of the worker that "
            "deferred it (apache/airflow#72716)."
        ),
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": "7",
    },
    "handoff_limit": {
        "description": (
            "Seconds that a gang may run unwatched between a trigger's event and the worker that acts on it (a full "
            "pool, a paused DAG, a slow scheduler)."
        ),
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": "1800",
    },
    "channel_uri": {
        "description": (
            "Bucket below which agents report and take orders (s3://bucket/prefix, gs://, az://), for nodes that share "
            "no folder with Airflow. Workers and triggerers find its credentials in their environment; agents need "
            "none. Empty: the run's folder below the state root."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "s3://pretraining/llmsched",
        "default": "",
    },
    "measured_links_limit": {
        "description": (
            "Seconds for which what checks of nodes (PreflightOperator) measured of a cluster's links counts in plans "
            "of later launches there. 0: plans go by what the topology claims."
        ),
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": "604800",
    },
    "fleet_file": {
        "description": (
            "YAML file that lists clusters and clouds (docs/reference/fleet.md). Tasks may then name a cluster of it "
            "as their engine, or the engine fleet for all of them. Workers and triggerers read it where they run. "
            "Empty: engines are adapters only."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "/opt/airflow/llmsched/fleet.yaml",
        "default": "",
    },
}
"""Our section of Airflow's configuration."""


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow's provider manager needs to know."""
    return {
        "package-name": "airflow-provider-llmsched",
        "name": "LLM pretraining scheduler",
        "description": "Plan, place, launch, watch and recover language-model pretraining.",
        "integrations": [
            {
                "integration-name": "llmsched",
                "external-doc-url": "https://pypi.org/project/airflow-provider-llmsched/",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": "llmsched",
                "python-modules": [
                    f"{_OPERATORS}.open_run",
                    f"{_OPERATORS}.dataset",
                    f"{_OPERATORS}.planning",
                    f"{_OPERATORS}.preflight",
                    f"{_OPERATORS}.gang",
                    f"{_OPERATORS}.evaluation",
                    f"{_OPERATORS}.capacity",
                    f"{_OPERATORS}.market",
                    f"{_OPERATORS}.release",
                    f"{_OPERATORS}.reap",
                    f"{_OPERATORS}.report",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "llmsched",
                "python-modules": [
                    "airflow_llmsched.provider.sensors.checkpoint",
                    "airflow_llmsched.provider.sensors.capacity",
                ],
            }
        ],
        "hooks": [{"integration-name": "llmsched", "python-modules": ["airflow_llmsched.provider.hooks.placement"]}],
        "triggers": [
            {
                "integration-name": "llmsched",
                "python-modules": [
                    "airflow_llmsched.provider.triggers.gang",
                    "airflow_llmsched.provider.triggers.checkpoint",
                    "airflow_llmsched.provider.triggers.lease",
                ],
            }
        ],
        "extra-links": ["airflow_llmsched.provider.links.RunReportLink"],
        "plugins": [{"name": "llmsched", "plugin-class": "airflow_llmsched.provider.plugin.LlmschedPlugin"}],
        "cli": ["airflow_llmsched.provider.cli.get_cli_commands"],
        "config": {"llmsched": {"description": "Settings of airflow-provider-llmsched.", "options": _OPTIONS}},
    }
