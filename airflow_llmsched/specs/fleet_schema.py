"""Keys of a fleet file: names, types, defaults and meaning, one class a block. ``fleet_file``: rules between them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from airflow_llmsched.domain.fleet import Cluster, ClusterLimits
from airflow_llmsched.domain.queue import PriorityClass, QueuePolicy, Reclaim
from airflow_llmsched.specs import fields as f
from airflow_llmsched.specs.block import Block

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_CLUSTER = Cluster(name="", engine="")
_LIMITS = ClusterLimits()
_CLASS = PriorityClass(name="", priority=0)
_POLICY = QueuePolicy()


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError("must be 1 to 32 of a-z, 0-9 and '-', with a letter or digit at either end")
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or "\0" in text:
        raise ValueError("must be an absolute path without '..'")
    return text.rstrip("/") or "/"


Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"minLength": 1, "maxLength": 32})]
AbsolutePath = Annotated[str, AfterValidator(_absolute), Field(json_schema_extra={"minLength": 1})]


class LimitsBlock(Block):
    """The most that all live gangs of the deployment together may have of one cluster."""

    max_nodes: f.Count | None = Field(_LIMITS.max_nodes, description="Nodes. Default: all that the engine has.")
    max_slots: f.Count | None = Field(_LIMITS.max_slots, description="Slots (accelerators). Default: all.")
    max_runs: f.Count | None = Field(_LIMITS.max_runs, description="Runs with a live gang. Default: any number.")


class ClusterBlock(Block):
    """One cluster: how it is reached, and what may be done with it."""

    name: Name = Field(description="What DAGs, plans and gangs call it. Never rename one that has gangs.")
    engine: f.Word = Field(description="Name of an engine adapter, such as `slurm`, `hosts` or `local`.")
    options: dict[str, Any] = Field({}, description="Options of the adapter, as `engine_options` in a DAG.")
    connection: f.Word | None = Field(
        None, description="Airflow connection to sign in with: the option `conn_id` of the adapter."
    )
    limits: LimitsBlock = Field(LimitsBlock(), description="What may be used of it.")
    usd_per_hour: dict[str, f.Usd] = Field({}, description="Price of a node's hour by its shape. Default: list prices.")
    region: str = Field(_CLUSTER.region, description="Where it is, for `capacity.regions` of a spec.")
    jurisdiction: str = Field(_CLUSTER.jurisdiction, description="Whose law holds, for `capacity.jurisdictions`.")
    preference: Annotated[int, Field(ge=-1000, le=1000)] = Field(
        _CLUSTER.preference,
        description="Clusters with a higher one are planned on while a run fits there, within its deadline and budget.",
    )
    silent_after: f.Duration = Field(
        _CLUSTER.silent_after_s,
        description="Once neither the cluster nor the agents of a gang have answered for so long, the gang is lost.",
    )
    level_names: dict[str, f.Word] = Field(
        {}, description="Names of its topology's levels instead of the adapter's, to have clusters agree on them."
    )
    shared_storage: Name | None = Field(
        None, description="Storage in which its gangs save. Default: what workers see, at the same paths."
    )
    checkpoint_root: AbsolutePath | None = Field(
        None, description="Where its nodes see that storage. Default: where workers do."
    )


class CloudBlock(Block):
    """One cloud that capacity may be rented from, under its adapter's name."""

    cloud: f.Word = Field(description="Name of a cloud adapter, such as `aws`, `gcp`, `azure` or `onprem`.")
    options: dict[str, Any] = Field({}, description="Options of the adapter, as `clouds` in a DAG.")
    connection: f.Word | None = Field(None, description="Airflow connection to sign in with.")


class StorageBlock(Block):
    """A file system that checkpoints are saved in, where Airflow's workers have it mounted too."""

    name: Name = Field(description="What clusters call it.")
    mounted_at: AbsolutePath = Field(description="Where workers see it. It must be there, or nothing is resumed.")


class PriorityClassBlock(Block):
    """A class of runs, as `queue.priority` of a spec names it."""

    name: f.Word = Field(description="What specs call it.")
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = Field(description="Higher ones go first.")
    protected: f.Duration | None = Field(
        None, description="For so long after its start a run of the class is not preempted. Default: not at all."
    )
    may_preempt: bool = Field(_CLASS.may_preempt, description="Whether it may preempt runs of lower classes.")


class TeamBlock(Block):
    """What one team may use. Teams of a cohort lend one another what they leave unused."""

    name: f.Word = Field(description="What `queue.team` of a spec says. Runs without that are of team `default`.")
    accelerators: f.CountOrZero | None = Field(None, description="Accelerators of its own. Default: no limit.")
    cohort: f.Word | None = Field(None, description="Teams that lend and borrow among themselves. Default: neither.")
    may_borrow: f.CountOrZero | None = Field(None, description="Most accelerators beyond its own. Default: no limit.")
    may_lend: f.CountOrZero | None = Field(None, description="Most of its own that others may use. Default: all.")
    reclaim: f.ReclaimName = Field(
        Reclaim.LOWER_PRIORITY,
        description="Which runs of other teams it may preempt: `never` any, those of a `lower_priority`, or `any` that "
        "run on what their team has borrowed.",
    )
    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(1.0, description="Its share relative to other teams'.")


class QueueObjectiveBlock(Block):
    """What counts when nodes are shared out, relative to the rest: of many decisions the best one is made.

    Classes, quotas and promises hold in all of them.
    """

    throughput: f.Weight = Field(0.0, description="Accelerators that nobody holds.")
    cost: f.Weight = Field(0.0, description="Work that preemption throws away, restarts included.")
    latency: f.Weight = Field(0.0, description="Time until runs that wait are expected to start.")
    fairness: f.Weight = Field(0.0, description="Difference between the largest and the smallest share of a team.")
    reliability: f.Weight = Field(0.0, description="Failures to be expected of the nodes that are given out.")


class QueueBlock(Block):
    """How runs share nodes of engines without a scheduler of their own."""

    classes: list[PriorityClassBlock] = Field(
        [], description="Priority classes, one of them `normal`. Default: low -100, normal 0, high 100, urgent 1000."
    )
    teams: list[TeamBlock] = Field([], description="Teams. With any, a spec that names another is refused.")
    order: f.OrderName = Field(
        _POLICY.order,
        description="Who goes first within a class: `fair` (the team that has had least), `first_come`, "
        "`shortest_first` or `largest_first`.",
    )
    half_life: f.Duration = Field(_POLICY.half_life_s, description="What was used so long ago counts half.")
    starving_after: f.Duration = Field(
        _POLICY.starving_after_s, description="A run that has waited for so long goes before all classes."
    )
    backfill: bool = Field(
        _POLICY.may_backfill, description="Runs may start before one that waits for longer, if that delays no promise."
    )
    preemption: bool = Field(_POLICY.may_preempt, description="Runs may be told to make room.")
    objective: QueueObjectiveBlock | None = Field(
        None,
        description="What counts when nodes are shared out. Default: `order` says who goes first, and that is all.",
    )


class FleetModel(Block):
    """Clusters, clouds, the storages of checkpoints, and how runs share nodes."""

    version: Literal[1] = Field(description="Version of this format.")
    clusters: list[ClusterBlock] = Field([], description="Clusters that gangs run on.")
    clouds: list[CloudBlock] = Field([], description="Clouds that capacity is rented from.")
    storages: list[StorageBlock] = Field([], description="File systems of checkpoints.")
    queue: QueueBlock | None = Field(None, description="How runs share nodes. Default: without quotas.")
