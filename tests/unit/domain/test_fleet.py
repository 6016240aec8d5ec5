from __future__ import annotations

from airflow_llmsched.domain.fleet import Cluster, ClusterLimits, Fleet, Storage, cluster_of, fleet_node, own_name
from airflow_llmsched.domain.identity import NodeId


def test_a_node_of_a_fleet_says_its_cluster_and_what_it_calls_itself() -> None:
    node = fleet_node("campus", NodeId("gpu-07.example"))
    assert (cluster_of(node), own_name(node)) == ("campus", "gpu-07.example")


def test_a_node_of_no_fleet_has_no_cluster_and_one_name() -> None:
    assert (cluster_of(NodeId("n0")), own_name(NodeId("n0"))) == ("", "n0")


def test_limits_are_set_once_one_of_them_is() -> None:
    assert not ClusterLimits().are_set
    assert ClusterLimits(max_runs=1).are_set


def test_clusters_and_storages_are_found_by_their_names() -> None:
    fleet = Fleet(
        clusters=(Cluster(name="a", engine="local"),), storages=(Storage(name="disk", mounted_at="/mnt/disk"),)
    )
    assert fleet.cluster("a") == fleet.clusters[0]
    assert fleet.storage("disk") == fleet.storages[0]
    assert fleet.cluster("b") is None
    assert fleet.storage("") is None
