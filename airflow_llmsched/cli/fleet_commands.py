"""``llmsched fleet``: whether a fleet file is sound, and what its clusters have free now."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.cli.engines import open_engine
from airflow_llmsched.cli.state_root import state_root_option
from airflow_llmsched.domain.fleet import FLEET, Cluster, Fleet
from airflow_llmsched.domain.queue_rules import QueueRules
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.errors import LlmschedError, SpecError
from airflow_llmsched.specs import fleet_file
from airflow_llmsched.specs.quantities import format_duration_s

EXIT_BAD_FILE = 1


class Action(StrEnum):
    """What to do with the file."""

    CHECK = "check"
    SHOW = "show"


FleetOption = typer.Option("--fleet", envvar="AIRFLOW__LLMSCHED__FLEET_FILE", help="The deployment's fleet file.")


def fleet(
    action: Annotated[Action, typer.Argument(help="check: read it only. show: ask its clusters, too.")],
    file: Annotated[Path, FleetOption],
    state_root: Annotated[Path | None, state_root_option()] = None,
) -> None:
    """Check a fleet file, listing every mistake with its line; or show what its clusters have free now.

    Exit code: 0 all is well; 1 a mistake, or no cluster could be asked.
    """
    try:
        read = fleet_file.load(file)
        if action is Action.CHECK:
            for table in _told(read):
                Console().print(table)
            return
        if state_root is None:
            raise SpecError(path="--state-root", hint="is needed to show a fleet: what its gangs have is noted there")
        if not read.clusters:
            raise SpecError(path="clusters", file=str(file), hint="lists none, so that there is nothing to show")
        tree = open_engine(FLEET, {}, state_root=state_root, fleet=read).topology()
    except LlmschedError as error:
        for each in error.errors if isinstance(error, SpecError) else (error,):
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_FILE) from None
    Console().print(_free(read, tree.nodes))
    typer.echo(f"levels: {', '.join(tree.levels)}")


def _told(fleet: Fleet) -> Iterator[Table]:
    if fleet.clusters or fleet.clouds:
        yield _terms(fleet)
    if fleet.queue != QueueRules():
        yield _classes(fleet.queue)
    if fleet.queue.quotas:
        yield _teams(fleet.queue)


def _terms(fleet: Fleet) -> Table:
    table = Table(title="Clusters and clouds", title_justify="left")
    for heading in ("name", "adapter", "limits", "preference", "where", "checkpoints"):
        table.add_column(heading, overflow="fold")
    for each in fleet.clusters:
        where = ", ".join(filter(None, (each.region, each.jurisdiction)))
        cells = (each.name, each.engine, _limits(each), str(each.preference), where, _checkpoints(fleet, each))
        # Text, not str: square brackets in a name are the user's, not markup
        table.add_row(*map(Text, cells))
    for cloud in fleet.clouds:
        table.add_row(Text(cloud), Text(cloud), "", "", "", "")
    return table


def _classes(rules: QueueRules) -> Table:
    table = Table(title="Classes, who goes first on top", title_justify="left")
    for heading in ("class", "priority", "protected", "may preempt"):
        table.add_column(heading, overflow="fold")
    for each in sorted(rules.classes, key=lambda each: -each.priority):
        protected = format_duration_s(each.protected_s) if each.protected_s else ""
        table.add_row(*map(Text, (each.name, str(each.priority), protected, "yes" if each.may_preempt else "no")))
    return table


def _teams(rules: QueueRules) -> Table:
    table = Table(title="Teams and their accelerators", title_justify="left")
    for heading in ("team", "its own", "cohort", "may borrow", "may lend", "reclaims from", "weight"):
        table.add_column(heading, overflow="fold")
    for each in rules.quotas:
        most = (limits.num_accelerators for limits in (each.nominal, each.borrowing, each.lending))
        own, borrowed, lent = ("any" if number is None else f"{number:g}" for number in most)
        lends = (each.cohort, borrowed, lent, each.reclaim.value) if each.cohort else ("", "", "", "")
        table.add_row(*map(Text, (each.team, own, *lends, f"{each.weight:g}")))
    return table


def _limits(cluster: Cluster) -> str:
    limits = cluster.limits
    named = (("runs", limits.max_runs), ("nodes", limits.max_nodes), ("slots", limits.max_slots))
    return ", ".join(f"{most} {name}" for name, most in named if most is not None)


def _checkpoints(fleet: Fleet, cluster: Cluster) -> str:
    storage = fleet.storage(cluster.shared_storage)
    if storage is None:
        return "where workers see them"
    return f"{storage.name}, at {cluster.checkpoint_root or storage.mounted_at}"


def _free(fleet: Fleet, nodes: tuple[TopologyNode, ...]) -> Table:
    table = Table(title="Clusters", title_justify="left")
    for heading in ("cluster", "shapes", "nodes", "free slots", "not usable"):
        table.add_column(heading, overflow="fold")
    for each in fleet.clusters:
        own = [node for node in nodes if node.path[0] == each.name]
        usable = sum(node.usable_slots for node in own)
        reasons = dict.fromkeys(node.unusable_reason for node in own if node.unusable_reason)
        shapes = dict.fromkeys(node.shape for node in own)
        free = f"{usable} of {sum(node.num_slots for node in own)}"
        table.add_row(*map(Text, (each.name, ", ".join(shapes), str(len(own)), free, "; ".join(reasons))))
    return table
