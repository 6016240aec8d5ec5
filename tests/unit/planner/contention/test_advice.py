from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel
from airflow_llmsched.planner.contention.advice import advise, capacities, link_name, protections
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId, gang_load
from airflow_llmsched.planner.graphs.cluster_graph import FLEET, ClusterGraph
from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from tests.unit.planner.contention.test_loads import on
from tests.unit.planner.graphs.test_cluster_graph import H100, tree

RATES = {"rack": 50e9, "block": 50e9, None: 1e9}
NETWORK = tuple(
    NetworkLevel(level=level, bandwidth_bytes_per_s=rate, is_measured=True) for level, rate in RATES.items()
)

THIN = ClusterGraph(tree(network=NETWORK), H100)
RING = JobGraph(
    num_ranks=16, exchanges=(Exchange(group="dp", pattern=Pattern.RING, stride=1, size=16, bytes_per_rank=8e9),)
)


def load(name: str, *nodes: int) -> GangLoad:
    return gang_load(name, RING, on(*nodes, job=RING), THIN, step_s=1.0)


def test_who_slows_whom_is_said_with_the_link_and_what_helps() -> None:
    apart = [load("A", 0, 4), load("B", 1, 5), load("C", 2, 6)]
    told = advise(apart, THIN)
    assert told[0].startswith("B and C on the links of the block of n0 slow A by ")
    assert told[0].endswith("%")
    assert "beginning steps apart" in told[-1]


def test_nothing_is_said_of_gangs_in_blocks_of_their_own() -> None:
    assert advise([load("A", 0, 1), load("B", 4, 5)], THIN) == ()


def test_links_are_named_by_their_level_and_first_node() -> None:
    assert link_name(LinkId(depth=2, domain=3), THIN) == "the link of node n3"
    assert link_name(LinkId(depth=1, domain=1), THIN) == "the links of the rack of n2"


def test_capacities_are_those_of_the_cluster() -> None:
    found = capacities([load("A", 0, 4)], THIN)
    assert found[LinkId(depth=0, domain=0)] == 32 * 1e9
    assert THIN.links[0].level == FLEET
    assert replace(load("A", 0, 4), name="B").uses.keys() == found.keys()


def test_what_staging_may_take_is_said_for_gangs_that_leave_their_nodes() -> None:
    (told,) = protections([load("A", 0, 4)], THIN)
    assert told.startswith("staging or saving as fast as a node's cards go would slow A by ")
    harm, held = (float(part.rsplit("by ")[1].rstrip("%")) for part in told.split("; held to "))
    assert held == pytest.approx(harm / 5, abs=0.1), "a limit takes away four fifths"
    inside = GangLoad(name="B", step_s=1.0, uses={})
    assert protections([inside], THIN) == ()


def test_where_collectives_are_served_first_staging_needs_no_limit() -> None:
    served = ClusterGraph(tree(network=NETWORK, facts=NetworkFacts(traffic_class=106)), H100)
    assert protections([load("A", 0, 4)], served) == ()
