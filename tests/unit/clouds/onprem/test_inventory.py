from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from airflow_llmsched.clouds.onprem import inventory
from airflow_llmsched.clouds.onprem.inventory import Inventory
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError

TEXT = """\
region: berlin
jurisdiction: EU
levels: [block, rack]
max_nodes: 12
pools:
  - zone: hall-1
    shape: dgx-h100
    num_slots: 8
    vendor: nvidia
    usd_per_hour: 12.5
    nodes:
      - {name: n1, address: 10.0.0.1, path: [b1, r1]}
      - name: n2
        path: [b1, r2]
        unusable: broken fan
  - shape: dgx-h100
    capacity: spot
    num_slots: 8
    nodes: []
"""


def parse(text: str) -> Inventory:
    return inventory.parse(text.encode(), file="fleet.yaml")


def test_a_node_that_is_off_cannot_be_used_whatever_else_is_said_of_it() -> None:
    off = parse(TEXT.replace("unusable: broken fan", 'off: "true"')).nodes[NodeId("n2")]
    assert (off.is_off, off.unusable) == (True, "it is off")
    why = parse(TEXT.replace("unusable: broken fan", "unusable: broken fan\n        off: true")).nodes[NodeId("n2")]
    assert (why.is_off, why.unusable) == (True, "broken fan")


def test_an_inventory_says_which_nodes_there_are_where_and_for_how_much() -> None:
    fleet = parse(TEXT)
    assert (fleet.region, fleet.jurisdiction, fleet.levels, fleet.max_nodes) == ("berlin", "EU", ("block", "rack"), 12)
    owned, lent = fleet.pools
    assert owned.pool == Pool(
        cloud="onprem", region="berlin", zone="hall-1", shape="dgx-h100", capacity_type=CapacityType.ON_DEMAND
    )
    assert (owned.num_slots, owned.usd_per_hour, owned.vendor) == (8, 12.5, "nvidia")
    assert [(node.id, node.address, node.path, node.unusable) for node in owned.nodes] == [
        ("n1", "10.0.0.1", ("b1", "r1"), ""),
        ("n2", "n2", ("b1", "r2"), "broken fan"),
    ]
    assert lent.pool.capacity_type is CapacityType.SPOT
    assert math.isnan(lent.usd_per_hour)
    assert fleet.find(owned.pool) is owned
    assert set(fleet.nodes) == {"n1", "n2"}


def test_json_is_read_as_well() -> None:
    plain = {"region": "berlin", "pools": [{"shape": "x", "num_slots": 4, "nodes": [{"name": "n1"}]}]}
    assert parse(json.dumps(plain)).pools[0].nodes[0].id == "n1"


def test_a_price_may_be_what_owning_a_node_comes_to() -> None:
    cost = "cost: {capex_usd: 350400, lifetime_s: 157680000, power_kw: 10, usd_per_kwh: 0.2, overhead_ratio: 0.5}"
    pool = parse(TEXT.replace("usd_per_hour: 12.5", cost)).pools[0]
    assert pool.usd_per_hour == pytest.approx(8.0 + 3.0)
    assert pool.energy_usd_per_hour == pytest.approx(3.0)
    assert pool.carbon_g_per_hour is None
    told = parse(TEXT.replace("usd_per_hour: 12.5", cost.replace("}", ", carbon_g_per_kwh: 40}"))).pools[0]
    assert told.carbon_g_per_hour == pytest.approx(600.0)


def test_a_node_whose_power_nobody_says_does_not_look_as_if_it_drew_none() -> None:
    pool = parse(TEXT.replace("usd_per_hour: 12.5", "cost: {capex_usd: 350400, lifetime_s: 157680000}")).pools[0]
    assert pool.energy_usd_per_hour is None


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("region: berlin\n", "", 1, "region: is missing"),
        ("jurisdiction: EU", "jurisdictoin: EU", 2, "is no field here"),
        ("max_nodes: 12", "max_nodes: 1.5", 4, "whole number"),
        ("max_nodes: 12", "max_nodes: -3", 4, "0 or more"),
        ("    vendor: nvidia", "    vendor: nvidia\n    vendor: amd", 10, "is there twice"),
        ("num_slots: 8\n    vendor", "num_slots: many\n    vendor", 8, "must be a number"),
        ("usd_per_hour: 12.5", "usd_per_hour: .nan", 10, "must be a number"),
        ("usd_per_hour: 12.5", "usd_per_hour: 1\n    cost: {}", 6, "beside usd_per_hour"),
        ("usd_per_hour: 12.5", "cost: {capex_usd: 1}", 10, "lifetime_s: is missing"),
        ("usd_per_hour: 12.5", "cost: {capex_usd: 1, lifetime_s: 0}", 10, "must be above 0"),
        ("name: n1", "name: n/1", 12, "must be letters"),
        ("- name: n2", "- name: n1", 13, "listed twice"),
        ("path: [b1, r2]", "path: [b1]", 13, "one part for each level"),
        ("path: [b1, r2]", "path: {b1: r2}", 14, "must be a list"),
        ("path: [b1, r2]", "path: [b1, [r2]]", 14, "must hold words"),
        ("unusable: broken fan", "unusable: [broken, fan]", 15, "must be text"),
        ("capacity: spot", "capacity: cheap", 16, "must be one of on_demand, spot"),
        ("capacity: spot", "zone: hall-1", 16, "second pool of the same zone"),
        ("nodes: []", "nodes: [n3]", 19, "must be a mapping"),
        ("region: berlin", "region: &r berlin", 1, "anchor"),
        ("region: berlin", "region: !!str berlin", 1, "tag"),
        ("region: berlin", "region: [[[[[[[[x]]]]]]]]", 1, "nested deeper"),
        ("region: berlin", "region: {", 3, "not valid YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, line: int, complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(SpecError, match=complaint) as caught:
        parse(TEXT.replace(old, new, 1))
    assert (caught.value.file, caught.value.line) == ("fleet.yaml", line)


@pytest.mark.parametrize("data", [b"", b"- a\n", b"text", b"\xff\xfe\xfa", b"a: b: c"])
def test_what_is_no_inventory_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError):
        inventory.parse(data, file="fleet.yaml")


def test_a_file_is_read_no_further_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(TEXT)
    assert inventory.read(str(path)) == inventory.parse(TEXT.encode(), file=str(path))
    path.write_bytes(b"#" * (inventory.MAX_BYTES + 1))
    with pytest.raises(SpecError, match="longer than"):
        inventory.read(str(path))
    with pytest.raises(FileNotFoundError):
        inventory.read(str(tmp_path / "none"))


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MAX_NODES", 1)
    with pytest.raises(SpecError, match="more than 1 nodes"):
        parse(TEXT)


def test_an_inventory_may_say_what_joins_its_nodes() -> None:
    said = """levels: [block, rack]
scale_up_level: rack
switches_reduce: true
fabric: {rails: 8, transport: dpu, traffic_class: 106}
network:
  - {level: block, bandwidth_bytes_per_s: 5.0e10}
  - {bandwidth_bytes_per_s: 1.2e10, measured: true}
"""
    fleet = parse(TEXT.replace("levels: [block, rack]\n", said))
    assert (fleet.scale_up_level, fleet.switches_reduce) == ("rack", True)
    assert fleet.facts == NetworkFacts(num_rails=8, transport=Transport.DPU, traffic_class=106)
    assert fleet.network == (
        NetworkLevel(level="block", bandwidth_bytes_per_s=5e10),
        NetworkLevel(level=None, bandwidth_bytes_per_s=1.2e10, is_measured=True),
    )
    assert (parse(TEXT).scale_up_level, parse(TEXT).network, parse(TEXT).switches_reduce) == (None, (), False)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("scale_up_level: row", "must be one of the levels"),
        ("switches_reduce: perhaps", "must be true or false"),
        ("fabric: {rails: 100}", "must be a whole number from 1 to 64"),
        ("fabric: {rails: 1.5}", "must be a whole number"),
        ("fabric: {transport: rdma}", "must be one of host, card, dpu"),
        ("fabric: {planes: 8}", "planes"),
        ("fabric: 8", "fabric"),
        ("network: [{level: rack, bandwidth_bytes_per_s: 0}]", "must be above 0"),
        ("network: [{bandwidth_bytes_per_s: 1}, {bandwidth_bytes_per_s: 2}]", "second entry for this level"),
    ],
)
def test_what_cannot_be_said_of_links_is_refused_with_its_line(said: str, why: str) -> None:
    with pytest.raises(SpecError, match=why) as refusal:
        parse(TEXT.replace("max_nodes: 12", said))
    assert refusal.value.line == 4


def test_an_engines_nodes_are_pools_by_shape_and_busy_unless_wholly_free() -> None:
    def node(name: str, shape: str, num_free: int, reason: str | None = None) -> TopologyNode:
        return TopologyNode(
            id=NodeId(name), path=("b1",), shape=shape, num_slots=8, num_free_slots=num_free, unusable_reason=reason
        )

    tree = TopologyTree(levels=("block",), nodes=(node("n1", "b", 8), node("n2", "a", 7), node("n3", "b", 8, "down")))
    fleet = inventory.from_tree(tree, region="here", usd_per_hour={"b": 3.0}, jurisdiction="EU")
    assert [each.pool.shape for each in fleet.pools] == ["a", "b"]
    assert (fleet.levels, fleet.jurisdiction, fleet.pools[1].usd_per_hour) == (("block",), "EU", 3.0)
    assert math.isnan(fleet.pools[0].usd_per_hour)
    assert {id_: (each.is_busy, each.unusable) for id_, each in fleet.nodes.items()} == {
        "n1": (False, ""),
        "n2": (True, ""),
        "n3": (False, "down"),
    }
