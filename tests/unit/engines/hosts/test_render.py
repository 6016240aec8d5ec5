from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.engines.hosts.inventory import parse_hosts
from airflow_llmsched.engines.hosts.render import render
from airflow_llmsched.errors import SpecError

HOSTS = parse_hosts(
    [{"name": f"h{index}", "address": f"10.0.0.{index}", "slots": 2} for index in (1, 2, 3)], levels=("host",)
)
PLACES = (("h2", 0), ("h2", 1), ("h1", 1))
GANG = GangSpec(
    key=AttemptKey(run=RunKey("ls-x"), generation=1, attempt=2),
    placement=Placement(
        slots=tuple(
            RankSlot(rank=rank, node=NodeId(node), slot=slot, local_rank=rank % 2)
            for rank, (node, slot) in enumerate(PLACES)
        )
    ),
    layout=ParallelLayout(dp=3),
    command=("train", "a b"),
    channel_root="/shared/channel",
    launcher=Launcher.PLAIN,
)


def test_nodes_come_in_order_of_their_ranks_with_the_addresses_that_others_reach_them_by() -> None:
    request = render(GANG, hosts=HOSTS)
    assert (request.engine, request.key) == ("hosts", GANG.key)
    nodes = [(part["node"], part["address"], part["ranks"], part["slots"]) for part in request.body["nodes"]]
    assert nodes == [("h2", "10.0.0.2", [0, 1], [0, 1]), ("h1", "10.0.0.1", [2], [1])]
    assert "peer_limit_s" not in request.body
    assert render(GANG, hosts=HOSTS, peer_limit_s=7.0).body["peer_limit_s"] == 7.0
    assert json.loads(json.dumps(dict(request.body))) == request.body


def test_path_by_which_ranks_find_the_agent_is_not_for_others_to_set() -> None:
    with pytest.raises(SpecError, match="option 'code'"):
        render(replace(GANG, environment={"PYTHONPATH": "/mine"}), hosts=HOSTS)


def test_host_that_the_engine_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match="h2, h3"):
        render(GANG, hosts=HOSTS[1:])
