"""The way in for a fleet file: YAML becomes a ``Fleet``, or one error that lists all mistakes with their lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_llmsched.domain.fleet import FLEET, Cluster, ClusterLimits, Fleet, Storage
from airflow_llmsched.domain.queue import Limits, PriorityClass, QueuePolicy, TeamQuota
from airflow_llmsched.domain.queue_rules import DEFAULT_CLASSES, DEFAULT_PRIORITY, QueueRules, QueueWeights
from airflow_llmsched.errors import SpecError
from airflow_llmsched.registry import AdapterGroup, names
from airflow_llmsched.specs import tree
from airflow_llmsched.specs.fleet_schema import ClusterBlock, FleetModel, QueueBlock, TeamBlock
from airflow_llmsched.specs.problems import Problem, nearest, to_error
from airflow_llmsched.specs.validate import to_problem, unknown_keys, without_unknown

CONNECTION = "conn_id"
"""Option of an adapter that names an Airflow connection."""

_SECRET_WORDS = ("password", "secret", "token", "private_key")


def load(path: str | Path) -> Fleet:
    """Read a fleet file.

    Raises:
        SpecError: it cannot be read; or names line, path and value of each mistake (``SpecErrors`` for several).
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            text = stream.read(tree.MAX_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(path="(fleet)", hint=f"cannot be read: {reason}", file=str(path)) from None
    return loads(text, file=str(file))


def loads(text: str, *, file: str = "<fleet>") -> Fleet:
    """Read a fleet from YAML text. Raises as :func:`load`."""
    root = tree.parse(text, file=file, whole="(fleet)")
    if not isinstance(root.value, dict):
        raise SpecError(path="(fleet)", hint="must be a block of keys; start with 'version: 1'", file=file, line=1)
    plain = root.plain()
    problems = list(unknown_keys(plain, FleetModel))
    model = None
    try:
        model = FleetModel.model_validate(without_unknown(plain, FleetModel))
    except ValidationError as error:
        problems += [to_problem(each, FleetModel) for each in error.errors(include_url=False)]
    if model is not None:
        problems += _rules(model)
    if problems or model is None:
        raise to_error(problems, root, file=file)
    return _fleet(model)


def _rules(model: FleetModel) -> Iterator[Problem]:
    if not model.clusters and not model.clouds and model.queue is None:
        yield Problem(path=("clusters",), hint="lists nothing, and so does clouds: name a cluster or a cloud")
    yield from _twice("clusters", [each.name for each in model.clusters], key="name")
    yield from _twice("clouds", [each.cloud for each in model.clouds], key="cloud")
    yield from _twice("storages", [each.name for each in model.storages], key="name")
    if model.queue is not None:
        yield from _queue_rules(model.queue)
    engines = names(AdapterGroup.ENGINES)
    storages = [each.name for each in model.storages]
    for index, cluster in enumerate(model.clusters):
        yield from _cluster_rules(cluster, ("clusters", index), engines=engines, storages=storages)
    for index, cloud in enumerate(model.clouds):
        at: tree.Path = ("clouds", index)
        yield from _known(cloud.cloud, (*at, "cloud"), known=names(AdapterGroup.CLOUDS), what="cloud adapter")
        yield from _no_secrets(cloud.options, (*at, "options"))


def _queue_rules(queue: QueueBlock) -> Iterator[Problem]:
    yield from _twice("queue", [each.name for each in queue.classes], key="name", below="classes")
    yield from _twice("queue", [each.name for each in queue.teams], key="name", below="teams")
    if queue.classes and DEFAULT_PRIORITY not in [each.name for each in queue.classes]:
        hint = f"must have a class {DEFAULT_PRIORITY!r}: runs that name none are of it"
        yield Problem(path=("queue", "classes"), hint=hint)
    if queue.objective is not None and not any(queue.objective.model_dump().values()):
        hint = "has no weight above 0; give at least one, such as latency: 1"
        yield Problem(path=("queue", "objective"), hint=hint)
    for index, team in enumerate(queue.teams):
        if team.cohort is None and (team.may_borrow is not None or team.may_lend is not None):
            hint = "is needed by a team that lends or borrows: name the cohort it does so in"
            yield Problem(path=("queue", "teams", index, "cohort"), hint=hint)


def _cluster_rules(
    cluster: ClusterBlock, at: tree.Path, *, engines: Sequence[str], storages: Sequence[str]
) -> Iterator[Problem]:
    if cluster.name == FLEET or cluster.name in engines:
        hint = "is what an engine is called in DAGs: choose a name of its own for the cluster"
        yield Problem(path=(*at, "name"), value=cluster.name, hint=hint)
    yield from _known(cluster.engine, (*at, "engine"), known=engines, what="engine adapter")
    yield from _no_secrets(cluster.options, (*at, "options"))
    if cluster.shared_storage is not None:
        yield from _known(cluster.shared_storage, (*at, "shared_storage"), known=storages, what="entry of storages")
    elif cluster.checkpoint_root is not None:
        hint = "says where nodes see a storage: name that in shared_storage"
        yield Problem(path=(*at, "checkpoint_root"), value=cluster.checkpoint_root, hint=hint)
    if len(set(cluster.level_names.values())) < len(cluster.level_names):
        yield Problem(path=(*at, "level_names"), hint="gives two levels one name")


def _known(name: str, path: tree.Path, *, known: Sequence[str], what: str) -> Iterator[Problem]:
    if name not in known:
        near = nearest(name, known)
        guess = f"did you mean {near!r}? " if near else ""
        yield Problem(path=path, value=name, hint=f"is no {what}; {guess}known: {', '.join(known) or 'none'}")


def _twice(block: str, given: Sequence[str], *, key: str, below: str = "") -> Iterator[Problem]:
    counts = Counter(given)
    at: tree.Path = (block, below) if below else (block,)
    for index, name in enumerate(given):
        if counts[name] > 1 and name in given[:index]:
            yield Problem(path=(*at, index, key), value=name, hint="is there twice: names tell entries apart")


def _no_secrets(options: Mapping[str, Any], path: tree.Path) -> Iterator[Problem]:
    """Refuse what looks like a secret: options travel with triggers, and show in logs. The value is not shown."""
    for key in options:
        if any(word in key.lower() for word in _SECRET_WORDS) and not key.lower().endswith(("_file", "_path")):
            yield Problem(
                path=(*path, key), hint="looks like a secret: name a connection, or a 0600 file that holds it"
            )


def _fleet(model: FleetModel) -> Fleet:
    return Fleet(
        clusters=tuple(_cluster(each) for each in model.clusters),
        clouds={each.cloud: _options(each.options, each.connection) for each in model.clouds},
        storages=tuple(Storage(name=each.name, mounted_at=each.mounted_at) for each in model.storages),
        queue=QueueRules() if model.queue is None else _queue(model.queue),
    )


def _queue(block: QueueBlock) -> QueueRules:
    classes = tuple(
        PriorityClass(
            name=each.name,
            priority=each.priority,
            protected_s=each.protected or 0.0,
            may_preempt=each.may_preempt,
        )
        for each in block.classes
    )
    policy = QueuePolicy(
        half_life_s=block.half_life,
        starving_after_s=block.starving_after,
        order=block.order,
        may_backfill=block.backfill,
        may_preempt=block.preemption,
    )
    return QueueRules(
        classes=classes or DEFAULT_CLASSES,
        quotas=tuple(_team(each) for each in block.teams),
        policy=policy,
        objective=None if block.objective is None else QueueWeights(**block.objective.model_dump()),
    )


def _team(block: TeamBlock) -> TeamQuota:
    return TeamQuota(
        team=block.name,
        nominal=Limits(num_accelerators=block.accelerators),
        cohort=block.cohort or "",
        borrowing=Limits(num_accelerators=block.may_borrow),
        lending=Limits(num_accelerators=block.may_lend),
        reclaim=block.reclaim,
        weight=block.weight,
    )


def _cluster(block: ClusterBlock) -> Cluster:
    return Cluster(
        name=block.name,
        engine=block.engine,
        options=_options(block.options, block.connection),
        limits=ClusterLimits(
            max_nodes=block.limits.max_nodes, max_slots=block.limits.max_slots, max_runs=block.limits.max_runs
        ),
        usd_per_hour=block.usd_per_hour,
        region=block.region,
        jurisdiction=block.jurisdiction,
        preference=block.preference,
        silent_after_s=block.silent_after,
        level_names=block.level_names,
        shared_storage=block.shared_storage or "",
        checkpoint_root=block.checkpoint_root or "",
    )


def _options(options: Mapping[str, Any], connection: str | None) -> Mapping[str, Any]:
    return dict(options) if connection is None else {**options, CONNECTION: connection}
