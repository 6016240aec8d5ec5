"""JSON Schema of topology files, and their reference page (``docs/reference/topology-file.md``), made from it."""

from __future__ import annotations

from importlib import resources
from typing import Any

from airflow_llmsched.specs.json_schema import DIALECT, schema_of
from airflow_llmsched.specs.reference import tables
from airflow_llmsched.specs.topology_schema import TopologyModel

EXAMPLE = "topology.yaml"

_HEAD = """\
# Topology file

<!-- Made by `llmsched schema --topology --markdown`. Do not edit: change airflow_llmsched/specs/topology_schema.py. -->

A topology file says by hand which nodes a fleet has, where they hang in its network, and what that network has room
for: where no tool can be asked, or to plan for machines that are not there yet. `llmsched topology show FILE` draws it
and lists every mistake with its line; `llmsched plan SPEC --topology FILE` plans on it. Both read
[other sources](topology.md), too.

- Quantities and YAML are read as in a [spec](spec.md): bandwidth such as `400 Gbit/s` (bits) or `50 GB/s` (bytes), no
  tags, at most 1 MiB.
- Ranges are Slurm's: `node[001-128]` are 128 names of three digits, `r[1-2]n[1-4]` are eight, in that order.
- A path is a place: rack `r1` of block `b1` and rack `r1` of block `b2` are two racks.
"""


def json_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12). It is a little wider than the reader."""
    return {"$schema": DIALECT, **schema_of(TopologyModel), "title": "llmsched topology"}


def markdown() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *tables(TopologyModel, json_schema()), f"## Example\n\n```yaml\n{example()}```\n"])


def example() -> str:
    """Return the text of the shipped example."""
    return (resources.files(__package__) / "examples" / EXAMPLE).read_text(encoding="utf-8")
