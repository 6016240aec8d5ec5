from __future__ import annotations

import json
from typing import Any

from tests.support.launching import starts, with_helpers

PORTS = {"n0": [1, 2], "n1": [3, 4]}
WORKERS = ["127.0.1.100:1", "127.0.1.100:2", "127.0.1.101:3", "127.0.1.101:4"]


def test_trainers_alone_are_all_workers() -> None:
    started = starts("n1", ports=PORTS, launcher="tf_config")
    assert [json.loads(start.environ["TF_CONFIG"]) for start in started] == [
        {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 2}},
        {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 3}},
    ]


def tasks(node: str, roles: dict[str, Any], ports: dict[str, list[int]]) -> list[Any]:
    started = starts(node, ports=ports, launcher="tf_config", **roles)
    return [json.loads(start.environ.get("TF_CONFIG", "null")) for start in started]


def test_with_parameter_servers_the_first_trainer_is_the_chief() -> None:
    ports = {"n0": [1, 2, 5], "n1": [3, 4, 6]}
    cluster = {"chief": WORKERS[:1], "worker": WORKERS[1:], "ps": ["127.0.1.100:5", "127.0.1.101:6"]}
    roles = with_helpers(("parameter_server", "n0"), ("parameter_server", "n1"))
    found = [*tasks("n0", roles, ports), *tasks("n1", roles, ports)]
    assert all(each["cluster"] == cluster for each in found)
    assert [(each["task"]["type"], each["task"]["index"]) for each in found] == [
        ("chief", 0),
        ("worker", 0),
        ("ps", 0),
        ("worker", 1),
        ("worker", 2),
        ("ps", 1),
    ]


def test_an_evaluator_is_no_part_of_the_cluster_and_a_loader_no_task() -> None:
    roles = with_helpers(("evaluator", "n0"), ("data_loader", "n0"))
    *_, evaluator, loader = tasks("n0", roles, {"n0": [1, 2, 5, 6], "n1": [3, 4]})
    assert evaluator == {"cluster": {"worker": WORKERS}, "task": {"type": "evaluator", "index": 0}}
    assert loader is None
