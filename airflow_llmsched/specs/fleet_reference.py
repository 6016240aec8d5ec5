"""JSON Schema of fleet files, and their reference page (``docs/reference/fleet.md``), made from the schema."""

from __future__ import annotations

from importlib import resources
from typing import Any

from airflow_llmsched.specs.fleet_schema import FleetModel
from airflow_llmsched.specs.json_schema import DIALECT, schema_of
from airflow_llmsched.specs.reference import tables

EXAMPLE = "fleet.yaml"

_HEAD = """\
# Fleet file

<!-- Made by `llmsched schema --fleet --markdown`. Do not edit: change airflow_llmsched/specs/fleet_schema.py. -->

A fleet file lists the clusters that gangs run on and the clouds that machines are rented from, once for the whole
deployment: `[llmsched] fleet_file` in Airflow's configuration, `--fleet` on the command line. A task then names a
cluster as its `engine`, or `fleet` for all of them; clouds are named as `clouds`. `llmsched fleet check` lists every
mistake with its line, `llmsched fleet show` what is free. [How to](../howto/several-clusters.md) says what becomes of a
run that moves.

- Quantities and YAML are read as in a [spec](spec.md): durations such as `90s`, money such as `$2.50`, no tags, at most
  1 MiB.
- Options hold no secrets: they show in logs, and travel with triggers. Name a `connection`, or a file with mode 0600.
- The file is read when a task, a trigger's poller or a command opens an engine. Restart triggerers to have running
  watches see a change. Do not remove a cluster that has gangs: they are then taken for lost, and fenced.
"""


def json_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12). It is a little wider than the loader."""
    return {"$schema": DIALECT, **schema_of(FleetModel), "title": "llmsched fleet"}


def markdown() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *tables(FleetModel, json_schema()), f"## Example\n\n```yaml\n{example()}```\n"])


def example() -> str:
    """Return the text of the shipped example."""
    return (resources.files(__package__) / "examples" / EXAMPLE).read_text(encoding="utf-8")
