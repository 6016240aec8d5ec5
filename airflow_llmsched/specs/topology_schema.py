"""Keys of a topology file: names, types, defaults and meaning, one class a block. ``topology_file``: rules between."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_llmsched.specs import fields as f
from airflow_llmsched.specs.block import Block
from airflow_llmsched.topology.reading import MAX_SLOTS


class LinkBlock(Block):
    """What the network has inside one domain of a level, between nodes that no inner level joins.

    Inner levels that have no entry of their own have the same.
    """

    level: f.Word | None = Field(None, description="The level. Default: between all nodes, beyond the outermost level.")
    bandwidth: f.Rate = Field(
        description="One way, of each accelerator when all use it at once: of a node's cards together by its slots."
    )
    measured: bool = Field(False, description="Collectives were seen to reach it: nothing is taken off it.")


class NodesBlock(Block):
    """Like nodes, and where they are."""

    names: f.Word = Field(description="One name or many, as Slurm writes them: `node[001-128]`, `a1,b[2-3]`.")
    path: list[f.Word] = Field(
        description="Their domains, one for each level, outermost first. Parts with brackets stand for several "
        "domains: the nodes are dealt out to them evenly, in their order."
    )
    shape: f.Word = Field(description="Kind of node, as `llmsched hardware` lists them, or a name of your own.")
    slots: Annotated[int, Field(gt=0, le=MAX_SLOTS)] | None = Field(
        None, description="Accelerators of each. Default: those of the shape."
    )
    free: f.CountOrZero | None = Field(None, description="How many of them are free. Default: all.")
    usd_per_hour: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Price of each node. Default: the list price of the shape."
    )
    failures_per_hour: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Failures and interruptions of each to expect. Placements avoid those that fail more often."
    )
    data: list[f.Word] = Field(
        [],
        description="Folders of data (`data.source` of a spec) that each has at hand. Placements avoid nodes that "
        "would have to fetch what others have.",
    )


class UnusableBlock(Block):
    """Nodes that must not be used."""

    names: f.Word = Field(description="As in `nodes`.")
    reason: f.Label = Field(description="Why, in words that a refusal repeats.")


class TopologyModel(Block):
    """Nodes of a fleet, the levels of their network, and what is known of its links."""

    version: Literal[1] = Field(description="Version of this format.")
    levels: list[f.Word] = Field(min_length=1, max_length=32, description="Names of the levels, outermost first.")
    scale_up_level: f.Word | None = Field(
        None,
        description="The level whose domains the fastest links join over several nodes, such as racks that are one "
        "NVLink domain. Default: they end with the node.",
    )
    switches_reduce: bool = Field(
        False, description="The operator has switched on reduction in the network's switches (SHARP)."
    )
    rails: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Planes of the network: the card of slot i is on plane i modulo this, and planes meet only above "
        "the leaf switches.",
    )
    transport: Literal["host", "card", "dpu"] | None = Field(
        None,
        description="Who moves the bytes: cores of the host, the network cards, or processors on them. Default: what "
        "the shapes of nodes say.",
    )
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = Field(
        None, description="Class of RoCE traffic that switches serve first, for collectives (`NCCL_IB_TC`)."
    )
    service_level: Annotated[int, Field(ge=0, le=15)] | None = Field(
        None, description="The same on InfiniBand (`NCCL_IB_SL`)."
    )
    links: list[LinkBlock] = Field([], description="Bandwidth of levels. Default: what the shapes of nodes say.")
    nodes: list[NodesBlock] = Field(min_length=1, description="The nodes.")
    unusable: list[UnusableBlock] = Field([], description="Those of them that must not be used.")
