from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.kubernetes import CLIQUE, HOSTNAME, SUBBLOCK, ULTRASERVER, read_kubernetes
from tests.support.kube_lists import GPU, ZONE, kube_list, kube_node, kube_pod, kube_topology

BLOCK = "cloud.google.com/gce-topology-block"
UNKNOWN_FREE = "node whose slots all count as free, as no pods are listed"


def read_one(node: dict[str, Any], *others: dict[str, Any], **asked: Any) -> TopologyNode:
    [found] = read_kubernetes(kube_list(node, *others), **asked).tree.nodes
    return found


def test_levels_are_the_labels_that_nodes_carry_outermost_first() -> None:
    found = read_kubernetes(
        kube_list(
            kube_node("a", labels={BLOCK: "b1", ZONE: "z1", "other": "x"}),
            kube_node("b", labels={ZONE: "z1", BLOCK: "b2"}),
        )
    )
    assert found.tree.levels == (ZONE, BLOCK)
    assert [(node.id, node.path) for node in found.tree.nodes] == [("a", ("z1", "b1")), ("b", ("z1", "b2"))]
    assert found.warnings == {UNKNOWN_FREE: 2}


def test_a_node_without_a_label_is_alone_and_counted() -> None:
    found = read_kubernetes(
        kube_list(kube_node("a", labels={ZONE: "z1", BLOCK: "b"}), kube_node("b", labels={ZONE: "z1"}))
    )
    assert [node.path for node in found.tree.nodes] == [("z1", "b"), ("z1", "b")]
    assert found.warnings["node without a label of its topology"] == 1


def test_nodes_of_which_nothing_is_said_are_domains_of_their_own() -> None:
    found = read_kubernetes(kube_list(kube_node("a")))
    assert (found.tree.levels, found.tree.nodes[0].path) == ((HOSTNAME,), ("a",))


@pytest.mark.parametrize(
    ("labels", "scale_up_level"),
    [
        ({ZONE: "z", CLIQUE: "c.1"}, CLIQUE),
        ({ZONE: "z", ULTRASERVER: "us-1"}, ULTRASERVER),
        ({SUBBLOCK: "s", "node.kubernetes.io/instance-type": "a4x-highgpu-4g"}, SUBBLOCK),
        ({SUBBLOCK: "s", "node.kubernetes.io/instance-type": "a3-megagpu-8g"}, None),
    ],
)
def test_the_label_of_nvlink_domains_is_the_scale_up_level(labels: dict[str, str], scale_up_level: str | None) -> None:
    assert read_kubernetes(kube_list(kube_node("a", labels=labels))).tree.scale_up_level == scale_up_level


RACK = "example.com/rack"


def racked(name: str, rack: str, clique: str | None) -> dict[str, Any]:
    labels = {BLOCK: "b1", RACK: rack, HOSTNAME: name} | ({} if clique is None else {CLIQUE: clique})
    return kube_node(name, labels=labels)


@pytest.mark.parametrize(
    ("nodes", "scale_up_level", "num_odd"),
    [
        ([racked("a", "r1", "u1.0"), racked("b", "r1", "u1.0"), racked("c", "r2", "u2.0")], RACK, 0),
        ([racked("a", "r1", "u1.0"), racked("b", "r2", "u1.0")], BLOCK, 0),
        ([racked("a", "r1", "u1.0"), racked("b", "r1", "u1.0"), racked("c", "r1", "u2.0")], None, 2),
        ([racked("a", "r1", "u1.0"), racked("b", "r1", "u1.0"), racked("c", "r1", None)], None, 2),
        ([racked("a", "r1", "u1.0"), racked("b", "r1", "u1.0"), racked("c", "r2", None)], RACK, 0),
        ([racked("a", "r1", "u1.0"), racked("b", "r1", "u2.0")], None, 0),
        ([racked("a", "r1", None), racked("b", "r1", None)], None, 0),
    ],
)
def test_a_level_of_a_topology_whose_domains_are_the_nvlink_domains_is_the_scale_up_level(
    nodes: list[dict[str, Any]], scale_up_level: str | None, num_odd: int
) -> None:
    found = read_kubernetes(kube_list(kube_topology("t", BLOCK, RACK, HOSTNAME), *nodes))
    assert found.tree.levels == (BLOCK, RACK, HOSTNAME)
    assert found.tree.scale_up_level == scale_up_level
    assert found.warnings.get("node whose NVLink domain is no domain of any level", 0) == num_odd


def test_a_node_that_lacks_a_label_of_the_topology_does_not_hide_its_nvlink_domains() -> None:
    stray = kube_node("d", labels={CLIQUE: "u1.0", BLOCK: "b1"})
    nodes = [racked("a", "r1", "u1.0"), racked("b", "r1", "u1.0"), stray]
    found = read_kubernetes(kube_list(kube_topology("t", BLOCK, RACK, HOSTNAME), *nodes))
    assert found.tree.scale_up_level == RACK


def test_a_node_outside_of_any_nvlink_domain_is_one_by_itself_and_not_odd() -> None:
    found = read_kubernetes(
        kube_list(kube_node("a", labels={ZONE: "z", CLIQUE: "c"}), kube_node("b", labels={ZONE: "z"}))
    )
    assert {node.id: node.path for node in found.tree.nodes} == {"a": ("z", "c"), "b": ("z", "b")}
    assert found.warnings == {UNKNOWN_FREE: 2}


def test_levels_of_a_topology_object_win_and_nodes_that_lack_one_are_not_usable() -> None:
    rack = "example.com/rack"
    found = read_kubernetes(
        kube_list(
            kube_node("a", labels={ZONE: "z", rack: "r1"}),
            kube_node("b", labels={ZONE: "z"}),
            kube_topology("tas", ZONE, rack, HOSTNAME),
        )
    )
    assert found.tree.levels == (ZONE, rack, HOSTNAME)
    assert [(node.path, node.unusable_reason) for node in found.tree.nodes] == [
        (("z", "b", "b"), f"without label {rack} of topology tas"),
        (("z", "r1", "a"), None),
    ]


@pytest.mark.parametrize(
    ("topologies", "name", "why"),
    [
        ([kube_topology("x", ZONE), kube_topology("y", ZONE)], None, "several topologies: x, y. Say which"),
        ([kube_topology("x", ZONE)], "y", "no topology 'y'. There is x"),
        ([], "y", "There is none"),
        ([kube_topology("x")], None, "topology 'x': spec: levels: must name labels"),
        ([kube_topology("x", ZONE, ZONE)], None, "each once"),
    ],
)
def test_which_topology_is_meant_must_be_clear(topologies: list[dict[str, Any]], name: str | None, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_kubernetes(kube_list(kube_node("a"), *topologies), topology=name)


def test_pods_take_slots_while_they_live() -> None:
    pods = [
        kube_pod("a", 1, 2),
        kube_pod("a", 1, phase="Succeeded"),
        kube_pod("a", 1, first=(2, "")),
        kube_pod("a", 1, first=(1, "Always")),
        kube_pod("", 4, phase="Pending"),
    ]
    assert read_one(kube_node("a"), *pods).num_free_slots == 8 - 3 - 2 - 2


def test_pods_that_fit_nowhere_are_counted() -> None:
    found = read_kubernetes(kube_list(kube_node("a"), kube_pod("a", 9), kube_pod("gone", 1)))
    assert found.tree.nodes[0].num_free_slots == 0
    assert found.warnings == {
        "node whose pods ask for more than it offers": 1,
        "pod on a node that is not listed": 1,
    }


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, None),
        ({"unschedulable": True}, "cordoned"),
        ({"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}, "tainted: team=x:NoSchedule"),
        ({"taints": [{"key": "bad", "effect": "NoExecute"}]}, "tainted: bad:NoExecute"),
        ({"taints": [{"key": "soft", "effect": "PreferNoSchedule"}]}, None),
        ({"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}, None),
    ],
)
def test_nodes_that_take_no_pods_say_why(spec: dict[str, Any], reason: str | None) -> None:
    assert read_one(kube_node("a", **spec)).unusable_reason == reason


def test_a_node_that_is_not_ready_says_so() -> None:
    node = kube_node("a")
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    assert read_one(node).unusable_reason == "not ready: NodeStatusUnknown"


@pytest.mark.parametrize("resource", ["amd.com/gpu", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron"])
def test_accelerators_of_all_vendors_are_slots(resource: str) -> None:
    node = kube_node("a", gpus=None)
    node["status"]["allocatable"] = {resource: "4", "aws.amazon.com/neuroncore": "8"}
    assert (read_one(node).num_slots, read_one(node).shape) == (4, f"4x{resource}")


def test_another_resource_can_be_the_slot() -> None:
    node = kube_node("a")
    node["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "7"
    node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "p5.48xlarge"
    found = read_one(node, resource="nvidia.com/mig-1g.10gb")
    assert (found.num_slots, found.shape) == (7, "7xnvidia.com/mig-1g.10gb")


def test_nodes_that_do_not_offer_the_resource_that_is_the_slot_are_left_out() -> None:
    parts = kube_node("b", taints=[{"key": GPU, "value": "present", "effect": "NoSchedule"}])
    parts["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "7"
    both = kube_list(kube_node("a"), parts)
    (node,) = read_kubernetes(both, resource="nvidia.com/mig-1g.10gb").tree.nodes
    assert (node.id, node.unusable_reason) == ("b", None)
    with pytest.raises(DataError, match=r"none of 2 nodes offers nvidia\.com/mig-7g"):
        read_kubernetes(both, resource="nvidia.com/mig-7g.80gb")


def test_what_gpu_feature_discovery_and_capacity_say_otherwise_is_counted() -> None:
    node = kube_node("a", gpus="7", labels={"nvidia.com/gpu.count": "4", "nvidia.com/gpu.product": "NVIDIA-H200"})
    node["status"]["capacity"][GPU] = "8"
    found = read_kubernetes(kube_list(node, kube_node("b", gpus="eight"), {"kind": "Secret"}))
    assert [(each.id, each.num_slots, each.shape) for each in found.tree.nodes] == [("a", 7, "hgx-h200")]
    assert found.warnings == {
        UNKNOWN_FREE: 1,
        "node that offers fewer accelerators than it has": 1,
        "node that offers another number than GPU feature discovery counts": 1,
        "number of accelerators that is none": 1,
        "object of another kind": 1,
    }


def test_lists_of_one_kind_need_not_repeat_it() -> None:
    node = kube_node("a")
    del node["kind"]
    assert read_kubernetes({"kind": "NodeList", "items": [node]}).tree.nodes[0].id == "a"
    assert read_kubernetes(kube_node("a")).tree.nodes[0].id == "a"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "is a list and not an object"),
        ({"kind": "List", "items": {}}, "items: is an object and not a list"),
        (kube_list(), "lists no node. Print nodes too"),
        (kube_list(kube_node("a", gpus="0")), "none of 1 nodes offers an accelerator. Known are nvidia.com/gpu"),
        (kube_list(kube_node("a"), kube_node("a")), "node 'a': is listed twice"),
        (kube_list({"kind": "Node", "metadata": {}}), r"items\[0\]: metadata.name: is missing"),
        (kube_list({**kube_node("a"), "spec": {"taints": {}}}), "node 'a': spec: taints"),
    ],
)
def test_contradictions_are_refused_with_object_and_field(document: object, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_kubernetes(document)


NODES = [
    kube_node("a", labels={ZONE: "z1", BLOCK: "b1"}),
    kube_node("b", labels={ZONE: "z2"}),
    kube_node("c", labels={ZONE: "z1", BLOCK: "b1"}, unschedulable=True),
    kube_pod("a", 3),
    kube_pod("c", 1),
    kube_pod("a", 1),
]


@given(st.permutations(NODES))
def test_the_order_of_objects_does_not_matter(items: list[dict[str, Any]]) -> None:
    assert read_kubernetes(kube_list(*items)) == read_kubernetes(kube_list(*NODES))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**12) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
PATHS = [
    ("kind",), ("metadata",), ("metadata", "name"), ("metadata", "labels"), ("metadata", "labels", ZONE), ("spec",),
    ("spec", "taints"), ("spec", "unschedulable"), ("spec", "containers"), ("spec", "nodeName"), ("status",),
    ("status", "allocatable"), ("status", "allocatable", GPU), ("status", "conditions"), ("status", "phase"),
]  # fmt: skip


@given(st.sampled_from(PATHS), JSON, st.integers(0, len(NODES) - 1))
def test_garbage_in_any_field_is_read_or_refused(path: tuple[str, ...], value: object, index: int) -> None:
    items = copy.deepcopy(NODES)
    inner: Any = items[index]
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
    inner[path[-1]] = value
    try:
        first = read_kubernetes(kube_list(*items))
    except DataError:
        return
    assert read_kubernetes(kube_list(*items)) == first
