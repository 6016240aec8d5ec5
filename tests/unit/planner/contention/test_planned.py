from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.planner.contention.loads import LinkId
from airflow_llmsched.planner.contention.planned import alone_step_s, job_graph, planned_load
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from tests.support.fleets import fleet
from tests.unit.planner.test_side_by_side import H100, RUN, WIDE, planned


def test_a_gang_alone_has_the_network_to_itself() -> None:
    tree = replace(fleet(4), network=(NetworkLevel(level=None, bandwidth_bytes_per_s=1e9),))
    (gang,) = planned(WIDE, tree=tree)
    assert alone_step_s(WIDE, gang.plan, tree, H100) < gang.plan.prediction.step_s
    assert alone_step_s(WIDE, gang.plan, fleet(4), H100) == pytest.approx(alone_step_s(WIDE, gang.plan, tree, H100))


def test_the_job_of_a_plan_has_its_ranks() -> None:
    (gang,) = planned(RUN)
    job = job_graph(RUN, gang.plan, H100)
    assert (job.num_ranks, [each.group for each in job.exchanges]) == (8, ["dp"])


def test_a_plan_puts_what_its_ranks_exchange_on_the_links_that_they_leave() -> None:
    tree = fleet(4)
    (gang,) = planned(WIDE, tree=tree)
    found = planned_load("wide", WIDE, gang.plan, tree, ClusterGraph(tree, H100))
    assert found.step_s == alone_step_s(WIDE, gang.plan, tree, H100)
    assert set(found.uses) == {LinkId(depth=2, domain=0), LinkId(depth=2, domain=1)}, "two nodes of one rack"
    ring = job_graph(WIDE, gang.plan, H100).exchanges[0]
    assert found.uses[LinkId(depth=2, domain=0)].bytes_per_step == pytest.approx(ring.bytes_per_rank)


def test_a_step_takes_no_less_than_its_traffic_does_over_the_thinnest_link() -> None:
    tree = replace(fleet(2, nodes_per_rack=1), network=(NetworkLevel(level="block", bandwidth_bytes_per_s=1e6),))
    (gang,) = planned(WIDE, tree=tree)
    found = planned_load("wide", WIDE, gang.plan, tree, ClusterGraph(tree, H100))
    assert found.step_s == max(use.active_s for use in found.uses.values()) > alone_step_s(WIDE, gang.plan, tree, H100)
