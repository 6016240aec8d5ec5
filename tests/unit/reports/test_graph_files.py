from __future__ import annotations

import io
import itertools

import networkx
import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from airflow_llmsched.reports import graph_files
from airflow_llmsched.reports.graph_files import cluster_graphml, job_graphml
from tests.unit.planner.contention.test_loads import RING, on
from tests.unit.planner.graphs.test_cluster_graph import H100, tree


def read(data: bytes):
    return networkx.read_graphml(io.BytesIO(data))


def test_between_two_nodes_of_the_file_the_thinnest_link_is_what_they_have() -> None:
    cluster = ClusterGraph(tree(), H100)
    graph = read(cluster_graphml(cluster))
    assert networkx.is_tree(graph)
    named = {data.get("label"): vertex for vertex, data in graph.nodes(data=True)}
    for other in ("n1", "n2", "n5"):
        way = networkx.shortest_path(graph, named["n0"], named[other])
        latency_s = max(graph[one][two]["latency_s"] for one, two in itertools.pairwise(way))
        assert latency_s == pytest.approx(cluster.link(NodeId("n0"), NodeId(other)).latency_s)
    assert graph.nodes[named["n0"]] == {"level": "node", "label": "n0", "slots": 8, "free_slots": 8}


def test_a_jobs_file_has_every_rank_its_place_and_what_it_sends_by_kind() -> None:
    pair = Exchange(group="pp", pattern=Pattern.LINE, stride=1, size=2, bytes_per_rank=4.0)
    ring = Exchange(group="dp", pattern=Pattern.RING, stride=1, size=2, bytes_per_rank=10.0)
    job = JobGraph(num_ranks=2, exchanges=(pair, ring))
    graph = read(job_graphml(job, on(0, 1, job=job)))
    assert graph.nodes["1"] == {"node": "n1", "slot": 0}
    assert graph["0"]["1"] == {"bytes_per_step": 12.0, "pp": 2.0, "dp": 10.0}


def test_a_large_gang_is_drawn_node_by_node(monkeypatch) -> None:
    monkeypatch.setattr(graph_files, "MAX_RANKS", 16)
    graph = read(job_graphml(RING, on(0, 1, 2, 3)))
    assert set(graph.nodes) == {"n0", "n1", "n2", "n3"}
    assert graph["n0"]["n1"]["bytes_per_step"] == 1e9


def test_without_the_extra_the_error_says_which(monkeypatch) -> None:
    def missing(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(graph_files, "import_module", missing)
    with pytest.raises(SpecError, match=r"\[graphs\]"):
        cluster_graphml(ClusterGraph(tree(), H100))
