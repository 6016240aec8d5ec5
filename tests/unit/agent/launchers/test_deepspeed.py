from __future__ import annotations

import base64
import json
import sys
from typing import Any

from airflow_llmsched.agent import wire
from tests.support.launching import BODY, starts


def world_info(argv: list[str]) -> dict[str, list[str]]:
    (given,) = [part.partition("=")[2] for part in argv if part.startswith("--world_info=")]
    told: dict[str, list[str]] = json.loads(base64.urlsafe_b64decode(given))
    return told


def test_each_node_has_deepspeeds_own_launcher_of_one_node() -> None:
    (start,) = starts("n1", launcher="deepspeed")
    argv = [part for part in start.argv if not part.startswith("--world_info=")]
    assert argv == [
        *(sys.executable, "-P", "-m", "deepspeed.launcher.launch"),
        *("--node_rank=1", "--master_addr=127.0.0.1", "--master_port=20123", "--no_local_rank", "--no_python"),
        *(sys.executable, "-P", "-m", "airflow_llmsched.agent.rank", "--", *BODY["command"]),
    ]
    assert list(world_info(start.argv).items()) == [("n0", ["0", "1"]), ("n1", ["0", "1"])]
    assert (start.environ["GROUP_RANK"], start.environ[wire.FIRST_RANK]) == ("1", "2")


def test_launcher_shows_ranks_the_slots_they_were_placed_on() -> None:
    (start,) = starts("n1", launcher="deepspeed", devices={"vendor": "nvidia"})
    assert world_info(start.argv)["n1"] == ["2", "3"]


def test_devices_that_an_engine_has_bound_stay_as_they_are() -> None:
    (start,) = starts("n1", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, launcher="deepspeed")
    assert world_info(start.argv)["n1"] == ["GPU-a", "GPU-b"]


def test_amd_devices_are_counted_among_those_that_the_runtime_shows() -> None:
    (start,) = starts("n1", launcher="deepspeed", devices={"vendor": "amd"})
    assert world_info(start.argv)["n1"] == ["0", "1"]
    assert start.environ["ROCR_VISIBLE_DEVICES"] == "2,3"


def test_nodes_of_helpers_alone_are_not_in_the_world() -> None:
    nodes: list[dict[str, Any]] = [*BODY["nodes"], {"node": "n2", "ranks": [], "slots": []}]
    (start,) = starts("n0", launcher="deepspeed", nodes=nodes)
    assert list(world_info(start.argv)) == ["n0", "n1"]
