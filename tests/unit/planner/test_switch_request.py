from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.plan import LaunchSetting
from airflow_llmsched.domain.topology import NetworkFacts
from airflow_llmsched.planner.launch_settings import NETWORK_ADDS_UP
from airflow_llmsched.planner.switch_request import switch_request
from tests.support.history import plan
from tests.unit.planner.contention.test_loads import on
from tests.unit.planner.graphs.test_cluster_graph import tree

GANG = AttemptKey(run=RunKey("ls-x"), generation=1, attempt=1)
ADDS_UP = (LaunchSetting(name=NETWORK_ADDS_UP, value="1", why="SHARP"),)


def placed(*nodes: int, adds_up: bool = True):
    found = plan("n0", "n1")
    return replace(
        found,
        placement=on(*nodes),
        layout=replace(found.layout, dp=8, tp=4),
        launch_settings=ADDS_UP if adds_up else (),
    )


@pytest.mark.parametrize(("nodes", "domain"), [((0, 1), ("b0", "r0")), ((0, 2), ("b0",)), ((0, 1, 2, 4), ())])
def test_each_group_of_replicas_has_a_tree_in_the_innermost_domain_around_the_gang(nodes, domain) -> None:
    found = switch_request(GANG, placed(*nodes), tree())
    assert found is not None
    assert (found.gang, found.domains, found.num_trees, found.traffic_class) == (GANG, (domain,), 4, None)


def test_a_class_of_its_own_is_asked_for_where_the_network_has_one() -> None:
    found = switch_request(GANG, placed(0, 1, adds_up=False), tree(facts=NetworkFacts(traffic_class=106)))
    assert found is not None
    assert (found.num_trees, found.traffic_class) == (0, 106)


def test_a_gang_on_one_node_or_one_that_needs_nothing_asks_for_nothing() -> None:
    assert switch_request(GANG, placed(0), tree()) is None
    assert switch_request(GANG, placed(0, 1, adds_up=False), tree()) is None
