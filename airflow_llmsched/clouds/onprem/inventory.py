"""A fleet as a file lists it, or as an engine sees it: pools of nodes with their places and prices.

YAML, or JSON, which is YAML too. Read from events, so that size and depth are bounded before anything is built; tags,
anchors and unknown fields are refused, and each error names its line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NetworkFacts, NetworkLevel, TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.on_prem import NodeCost
from airflow_llmsched.topology.links import facts_of

NAME = "onprem"
"""What pools of this cloud say in ``Pool.cloud``."""

MAX_BYTES = 4 * 1024**2
MAX_DEPTH = 8
MAX_NODES = 20_000

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LINKS = {"scale_up_level", "network", "switches_reduce", "fabric"}
_TOP = {"region", "jurisdiction", "levels", "max_nodes", "pools", *_LINKS}
_NETWORK = {"level", "bandwidth_bytes_per_s", "measured"}
_FABRIC = {"rails", "transport", "traffic_class", "service_level"}
_POOL = {"zone", "shape", "capacity", "num_slots", "usd_per_hour", "cost", "vendor", "nodes"}
_NODE = {"name", "address", "path", "unusable", "off"}
_COST = {
    "capex_usd",
    "lifetime_s",
    "power_kw",
    "usd_per_kwh",
    "overhead_ratio",
    "opex_usd_per_hour",
    "residual_usd",
    "busy_ratio",
    "carbon_g_per_kwh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """A machine. ``unusable`` says why it must not be used, ``is_busy`` that somebody is on it without a reservation.

    ``path`` are the domains it hangs in below its zone, outermost first. ``is_off``: it has no power, so that nothing
    that ran on it is alive.
    """

    id: NodeId
    address: str = ""
    path: tuple[str, ...] = ()
    unusable: str = ""
    is_busy: bool = False
    is_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPool:
    """Nodes of one shape in one zone, at one price. ``usd_per_hour`` is NaN where nobody set one."""

    pool: Pool
    num_slots: int
    usd_per_hour: float
    energy_usd_per_hour: float | None = None
    carbon_g_per_hour: float | None = None
    vendor: str = ""
    nodes: tuple[FleetNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All nodes. ``levels`` name the parts of their paths; ``max_nodes`` is our quota of them, None: all.

    ``scale_up_level``, ``network``, ``switches_reduce`` and ``facts`` are what ``TopologyTree`` says of its links.
    """

    region: str
    pools: tuple[FleetPool, ...]
    levels: tuple[str, ...] = ()
    jurisdiction: str = ""
    max_nodes: int | None = None
    scale_up_level: str | None = None
    network: tuple[NetworkLevel, ...] = ()
    switches_reduce: bool = False
    facts: NetworkFacts = AS_SHAPES_SAY

    def find(self, pool: Pool) -> FleetPool | None:
        """Return a pool by what it is."""
        return next((each for each in self.pools if each.pool == pool), None)

    @property
    def nodes(self) -> Mapping[NodeId, FleetNode]:
        """Return every node by its id."""
        return {node.id: node for pool in self.pools for node in pool.nodes}


def read(path: str) -> Inventory:
    """Return the inventory in a file. Raises ``OSError``, and ``SpecError`` with the line of what is wrong."""
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    return parse(data, file=path)


def parse(data: bytes, *, file: str) -> Inventory:
    """Return the inventory that ``data`` is. Raises ``SpecError`` with the line of what is wrong."""
    if len(data) > MAX_BYTES:
        raise SpecError(path="(inventory)", hint=f"is longer than {MAX_BYTES} bytes", file=file)
    try:
        _check_events(data, file)
        root = yaml.compose(data, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecError(
            path="(inventory)",
            hint=f"is not valid YAML: {error.problem or error.context}",
            file=file,
            line=mark.line + 1 if mark is not None else None,
        ) from None
    except yaml.YAMLError as error:
        raise SpecError(path="(inventory)", hint=f"is not valid YAML: {error}", file=file) from None
    return _inventory(_Block(root, "(inventory)", file, _TOP))


def from_tree(
    tree: TopologyTree, *, region: str, usd_per_hour: Mapping[str, float], jurisdiction: str = ""
) -> Inventory:
    """Return an engine's nodes, a pool for each shape. One that is not wholly free is busy."""
    shapes = sorted({node.shape for node in tree.nodes})
    return Inventory(
        region=region,
        jurisdiction=jurisdiction,
        levels=tree.levels,
        scale_up_level=tree.scale_up_level,
        network=tree.network,
        switches_reduce=tree.switches_reduce,
        facts=tree.facts,
        pools=tuple(
            FleetPool(
                pool=Pool(cloud=NAME, region=region, zone="", shape=shape, capacity_type=CapacityType.ON_DEMAND),
                num_slots=max(node.num_slots for node in tree.nodes if node.shape == shape),
                usd_per_hour=usd_per_hour.get(shape, math.nan),
                nodes=tuple(
                    FleetNode(
                        id=node.id,
                        address=node.id,
                        path=node.path,
                        unusable=node.unusable_reason or "",
                        is_busy=node.num_free_slots < node.num_slots,
                    )
                    for node in tree.nodes
                    if node.shape == shape
                ),
            )
            for shape in shapes
        ),
    )


def _check_events(data: bytes, file: str) -> None:
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        line = None if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise SpecError(
                path="(inventory)", hint="has an alias, an anchor or a tag: write it out", file=file, line=line
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise SpecError(path="(inventory)", hint=f"is nested deeper than {MAX_DEPTH} levels", file=file, line=line)


class _Block:
    """One mapping of the file, whose fields are asked for by kind."""

    def __init__(self, node: Any, path: str, file: str, known: set[str]) -> None:
        self.path, self.file = path, file
        self.line: int | None = node.start_mark.line + 1 if node is not None else None
        if not isinstance(node, yaml.MappingNode):
            raise self.error("must be a mapping", field="")
        self._fields: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known or name in self._fields:
                why = (
                    "is there twice" if name in self._fields else f"is no field here; known: {', '.join(sorted(known))}"
                )
                raise self.error(why, field=name, node=key)
            self._fields[name] = value

    def error(self, hint: str, *, field: str, node: Any = None, value: object = None) -> SpecError:
        line = self.line if node is None else node.start_mark.line + 1
        path = ".".join(part for part in (self.path, field) if part)
        return SpecError(path=path, value=value, hint=hint, file=self.file, line=line)

    def has(self, name: str) -> bool:
        return name in self._fields

    def text(self, name: str, default: str | None = None) -> str:
        node = self._field(name, required=default is None)
        if node is None:
            return default or ""
        if not isinstance(node, yaml.ScalarNode):
            raise self.error("must be text", field=name, node=node)
        return str(node.value)

    def word(self, name: str, default: str | None = None) -> str:
        value = self.text(name, default)
        if (value or default is None) and not _WORD.fullmatch(value):
            raise self.error(
                "must be letters, digits, . - and _, at most 63", field=name, node=self._fields[name], value=value
            )
        return value

    def number(self, name: str) -> float:
        value = self.text(name)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise self.error("must be a number, 0 or more", field=name, node=self._fields[name], value=value)
        return number

    def count(self, name: str) -> int:
        number = self.number(name)
        if number != int(number):
            raise self.error("must be a whole number", field=name, node=self._fields[name], value=number)
        return int(number)

    def flag(self, name: str) -> bool:
        value = self.text(name, "false")
        if value not in {"true", "false"}:
            raise self.error("must be true or false", field=name, node=self._fields[name], value=value)
        return value == "true"

    def level(self, name: str, levels: Sequence[str]) -> str | None:
        if not self.has(name):
            return None
        value = self.word(name)
        if value not in levels:
            known = ", ".join(levels) or "none"
            raise self.error(f"must be one of the levels ({known})", field=name, node=self._fields[name], value=value)
        return value

    def words(self, name: str) -> tuple[str, ...]:
        found = []
        for node in self._items(name):
            if not isinstance(node, yaml.ScalarNode) or not _WORD.fullmatch(node.value):
                raise self.error("must hold words of letters, digits, . - and _", field=name, node=node)
            found.append(str(node.value))
        return tuple(found)

    def blocks(self, name: str, known: set[str]) -> Iterator[_Block]:
        for index, node in enumerate(self._items(name)):
            yield _Block(
                node,
                f"{name}[{index}]" if self.path == "(inventory)" else f"{self.path}.{name}[{index}]",
                self.file,
                known,
            )

    def block(self, name: str, known: set[str]) -> _Block:
        return _Block(self._field(name, required=True), f"{self.path}.{name}", self.file, known)

    def _items(self, name: str) -> Sequence[Any]:
        node = self._field(name, required=False)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self.error("must be a list", field=name, node=node)
        return list(node.value)

    def _field(self, name: str, *, required: bool) -> Any:
        if required and name not in self._fields:
            raise self.error("is missing", field=name)
        return self._fields.get(name)


def _inventory(top: _Block) -> Inventory:
    region, levels = top.word("region"), top.words("levels")
    pools: list[FleetPool] = []
    seen: set[str] = set()
    for block in top.blocks("pools", _POOL):
        pool = _pool(block, region, levels, seen)
        if any(each.pool == pool.pool for each in pools):
            raise block.error("is a second pool of the same zone, shape and capacity: join them", field="")
        pools.append(pool)
    if len(seen) > MAX_NODES:
        raise top.error(f"lists more than {MAX_NODES} nodes", field="pools")
    return Inventory(
        region=region,
        pools=tuple(pools),
        levels=levels,
        jurisdiction=top.word("jurisdiction", ""),
        max_nodes=top.count("max_nodes") if top.has("max_nodes") else None,
        scale_up_level=top.level("scale_up_level", levels),
        network=_network(top, levels),
        switches_reduce=top.flag("switches_reduce"),
        facts=_facts(top),
    )


def _facts(top: _Block) -> NetworkFacts:
    if not top.has("fabric"):
        return AS_SHAPES_SAY
    block = top.block("fabric", _FABRIC)
    plain: dict[str, object] = {name: block.count(name) for name in _FABRIC - {"transport"} if block.has(name)}
    try:
        return facts_of(plain | ({"transport": block.word("transport")} if block.has("transport") else {}))
    except SpecError as error:
        if error.file is not None:
            raise
        raise block.error(error.hint, field=error.path.removeprefix("fabric."), value=error.value) from error


def _network(top: _Block, levels: Sequence[str]) -> tuple[NetworkLevel, ...]:
    found: list[NetworkLevel] = []
    for block in top.blocks("network", _NETWORK):
        level = block.level("level", levels)
        if any(each.level == level for each in found):
            raise block.error("is a second entry for this level", field="level", value=level)
        rate = block.number("bandwidth_bytes_per_s")
        if not rate:
            raise block.error("must be above 0", field="bandwidth_bytes_per_s", value=rate)
        found.append(NetworkLevel(level=level, bandwidth_bytes_per_s=rate, is_measured=block.flag("measured")))
    return tuple(found)


def _pool(block: _Block, region: str, levels: Sequence[str], seen: set[str]) -> FleetPool:
    capacity = block.word("capacity", CapacityType.ON_DEMAND.value)
    if capacity not in {each.value for each in CapacityType}:
        known = ", ".join(each.value for each in CapacityType)
        raise block.error(f"must be one of {known}", field="capacity", value=capacity)
    usd_per_hour, cost = _price(block)
    return FleetPool(
        pool=Pool(
            cloud=NAME,
            region=region,
            zone=block.word("zone", ""),
            shape=block.word("shape"),
            capacity_type=CapacityType(capacity),
        ),
        num_slots=block.count("num_slots"),
        usd_per_hour=usd_per_hour,
        energy_usd_per_hour=cost.energy_usd_per_hour if cost and cost.power_kw else None,
        carbon_g_per_hour=cost.carbon_g_per_hour if cost else None,
        vendor=block.word("vendor", ""),
        nodes=tuple(_node(each, levels, seen) for each in block.blocks("nodes", _NODE)),
    )


def _price(block: _Block) -> tuple[float, NodeCost | None]:
    if block.has("cost") and block.has("usd_per_hour"):
        raise block.error("cannot be there beside usd_per_hour: set one", field="cost")
    if not block.has("cost"):
        return (block.number("usd_per_hour") if block.has("usd_per_hour") else math.nan), None
    inner = block.block("cost", _COST)
    try:
        cost = NodeCost(**{name: inner.number(name) for name in _COST if inner.has(name) or name in _NEEDED})
    except SpecError as error:
        if error.file is not None:
            raise
        raise inner.error(error.hint, field=error.path, value=error.value) from error
    return cost.usd_per_hour, cost


_NEEDED = {"capex_usd", "lifetime_s"}


def _node(block: _Block, levels: Sequence[str], seen: set[str]) -> FleetNode:
    name, path = block.word("name"), block.words("path")
    if name in seen:
        raise block.error("is listed twice", field="name", value=name)
    if len(path) != len(levels):
        wanted = ", ".join(levels) or "none"
        raise block.error(f"must have one part for each level ({wanted})", field="path", value=path)
    seen.add(name)
    is_off = block.flag("off")
    return FleetNode(
        id=NodeId(name),
        address=block.text("address", name),
        path=path,
        unusable=block.text("unusable", "it is off" if is_off else ""),
        is_off=is_off,
    )
