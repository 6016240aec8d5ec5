from __future__ import annotations

import pytest

from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from airflow_llmsched.reports import placement_figures
from airflow_llmsched.reports.placement_figures import FREE, MIXED, traffic, where
from tests.unit.planner.contention.test_loads import RING, on
from tests.unit.planner.graphs.test_cluster_graph import tree


def test_nodes_have_the_colour_of_their_gang_and_domains_add_up() -> None:
    (icicle,) = where(tree(), {"<A>": on(0, 1, 2, 3), "B": on(3, 4, 5, 6)}).data
    colour = dict(zip(icicle.ids, icicle.marker.colors, strict=True))
    assert colour["node n0"] == colour["node n2"] != colour["node n4"]
    assert (colour["node n3"], colour["node n7"]) == (MIXED, FREE)
    value = dict(zip(icicle.ids, icicle.values, strict=True))
    assert value["b0"] == value["b0/r0"] + value["b0/r1"] == 32
    assert "&lt;A&gt;" in icicle.text


def test_traffic_is_drawn_between_nodes_in_the_order_of_their_ranks() -> None:
    (heatmap,) = traffic(RING, on(2, 0, 1, 3)).data
    assert list(heatmap.x) == ["n2", "n0", "n1", "n3"]
    assert heatmap.z.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


@pytest.mark.parametrize(("nodes", "limit"), [((3,), 128), ((0, 1, 2, 3), 2)])
def test_one_node_or_too_many_are_not_drawn(monkeypatch, nodes, limit) -> None:
    monkeypatch.setattr(placement_figures, "MAX_NODES", limit)
    exchange = Exchange(group="tp", pattern=Pattern.RING, stride=1, size=8, bytes_per_rank=1.0)
    job = JobGraph(num_ranks=8, exchanges=(exchange,))
    assert traffic(job, on(*nodes, job=job)) is None
