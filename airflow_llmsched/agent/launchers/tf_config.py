"""TF_CONFIG: each rank is one process, told the whole cluster and its own task in it, as ``tf.distribute`` reads it.

Source: TensorFlow's "Multi-worker training with Keras" and ``tf.distribute.cluster_resolver.TFConfigClusterResolver``.
Every task's port is held by its node's supervisor until the task's server binds it, with SO_REUSEADDR as gRPC does.
"""

from __future__ import annotations

import json

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers.ports import addresses
from airflow_llmsched.agent.launchers.site import Site, Start

_TASK = {wire.TRAINER: "worker", "parameter_server": "ps", "evaluator": "evaluator"}
"""A data loader is no task that TensorFlow knows of."""


def starts(site: Site) -> list[Start]:
    """Return one process for each rank of the node."""
    return [
        Start(
            site.wrapper,
            {**site.environ, **site.place_of(local_rank), **task_of(site, role=wire.TRAINER, index=rank)},
        )
        for local_rank, rank in enumerate(site.ranks)
    ]


def task_of(site: Site, *, role: str, index: int) -> dict[str, str]:
    """Return TF_CONFIG of one process; nothing for one that is no task of the cluster.

    With parameter servers the first trainer coordinates them: it is the chief. An evaluator is no part of the cluster.
    """
    if role not in _TASK:
        return {}
    known = addresses(site.body, site.ports)
    workers, servers = known[wire.TRAINER], known.get("parameter_server", [])
    chief = workers[:1] if servers else []
    task, number = _TASK[role], index
    if chief and role == wire.TRAINER:
        task, number = ("chief", 0) if index == 0 else ("worker", index - 1)
    cluster = {"chief": chief, "worker": workers[len(chief) :], "ps": servers}
    told = {
        "cluster": {name: tasks for name, tasks in cluster.items() if tasks},
        "task": {"type": task, "index": number},
    }
    return {"TF_CONFIG": json.dumps(told, separators=(",", ":"))}
