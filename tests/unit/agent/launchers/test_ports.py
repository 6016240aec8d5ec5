from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.agent.launchers.ports import address_of, addresses, num_ports
from tests.support.launching import BODY, with_helpers


@pytest.mark.parametrize(("launcher", "num"), [("torchrun", 0), ("jax", 0), ("mpirun", 0), ("tf_config", 2)])
def test_only_trainers_that_serve_need_ports(launcher: str, num: int) -> None:
    assert num_ports({**BODY, "launcher": launcher}, node="n1") == num


def test_every_helper_needs_a_port() -> None:
    body = {**BODY, **with_helpers()}
    assert [num_ports(body, node=node) for node in ("n0", "n1")] == [2, 1]
    assert num_ports({**body, "launcher": "tf_config"}, node="n0") == 4


def test_chips_of_one_tpu_host_reach_each_other_by_ports() -> None:
    tpu: dict[str, Any] = {**BODY, "devices": {"vendor": "google"}}
    assert num_ports({**tpu, "nodes": BODY["nodes"][:1]}, node="n0") == 2
    assert num_ports(tpu, node="n0") == 0


def test_members_are_listed_by_role_and_index_wherever_they_are() -> None:
    body = {**BODY, **with_helpers(), "launcher": "tf_config"}
    ports = {"n0": [1, 2, 3, 4], "n1": [5, 6, 7]}
    assert addresses(body, ports) == {
        "trainer": ["127.0.1.100:1", "127.0.1.100:2", "127.0.1.101:5", "127.0.1.101:6"],
        "data_loader": ["127.0.1.100:3", "127.0.1.101:7"],
        "evaluator": ["127.0.1.100:4"],
    }


def test_ports_of_another_number_than_members_are_an_error() -> None:
    with pytest.raises(ValueError, match="argument"):
        addresses({**BODY, "launcher": "tf_config"}, {"n0": [1]})


def test_loopback_addresses_sort_like_the_nodes_they_stand_for() -> None:
    body = {"nodes": [{"node": f"n{index}"} for index in range(900)]}
    found = [address_of(body, index) for index in range(900)]
    assert found == sorted(found)
    assert len(set(found)) == 900
    assert address_of({"nodes": [{"node": "n0", "address": "fd00::1"}]}, 0) == "fd00::1"
