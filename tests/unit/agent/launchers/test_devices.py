from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent.launchers.devices import selection, tpu_process, visible_ids, without_selection
from tests.support.launching import BODY, site, starts

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "device_environments.json"
SHOWN = ("CUDA_", "ROCR_", "HIP_", "TPU_", "CLOUD_TPU", "ALLOW_MULTIPLE", "JAX_PLATFORMS", "PJRT_")

HOST = [{"node": "n0", "ranks": [0, 1, 2, 3], "slots": [0, 1, 2, 3]}]
CASES: dict[str, dict[str, Any]] = {
    "nvidia, ranks on slots 2 and 3": {"devices": {"vendor": "nvidia"}},
    "amd, ranks on slots 2 and 3": {"devices": {"vendor": "amd"}},
    "google, all four chips of one host": {
        "devices": {"vendor": "google"},
        "nodes": HOST,
        "ports": {"n0": [20001, 20002, 20003, 20004]},
    },
    "google, several hosts: the runtime asks its metadata": {"devices": {"vendor": "google"}},
    "bound by the engine": {},
}


def environments() -> dict[str, list[dict[str, str]]]:
    """Return what selects devices in each rank's environment on the last node of each case."""
    found = {}
    for name, case in CASES.items():
        node = case.get("nodes", BODY["nodes"])[-1]["node"]
        started = starts(node, {"CUDA_VISIBLE_DEVICES": "6,7"}, launcher="plain", **case)
        found[name] = [
            {key: value for key, value in sorted(start.environ.items()) if key.startswith(SHOWN)} for start in started
        ]
    return found


def test_environments_are_as_written_down() -> None:
    assert environments() == json.loads(GOLDEN.read_text())


def test_ranks_see_their_nodes_slots_in_the_order_of_local_ranks_on_every_launcher() -> None:
    nodes = [{"node": "n0", "ranks": [0, 1], "slots": [5, 2]}]
    for launcher in ("torchrun", "plain", "deepspeed", "jax"):
        for start in starts("n0", launcher=launcher, nodes=nodes, devices={"vendor": "nvidia"}):
            assert start.environ["CUDA_VISIBLE_DEVICES"] == "5,2"


def test_process_without_slots_sees_no_accelerator() -> None:
    assert selection("nvidia", [])["CUDA_VISIBLE_DEVICES"] == ""
    assert selection("amd", []) == {"HIP_VISIBLE_DEVICES": "-1"}
    assert selection("google", [])["JAX_PLATFORMS"] == "cpu"
    assert selection(None, [1]) == {}


def test_selections_of_others_go_only_where_the_agent_selects() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "PATH": "/bin"}
    assert without_selection(base, "amd") == {"PATH": "/bin"}
    assert without_selection(base, None) == base


def test_what_the_user_selects_wins() -> None:
    found = site("n0", devices={"vendor": "nvidia"}, environment={"CUDA_VISIBLE_DEVICES": "7"})
    assert found.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_number_of_chips_that_no_host_has_is_refused() -> None:
    with pytest.raises(ValueError, match="3 TPU chips of one host form no grid"):
        tpu_process([0, 1, 2], index=0, addresses=["a:1", "a:2", "a:3"])


def test_devices_are_named_as_they_are_shown_or_counted() -> None:
    assert visible_ids({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, num_ranks=2) == ["GPU-1", "GPU-2"]
    assert visible_ids({"CUDA_VISIBLE_DEVICES": "3"}, num_ranks=2) == ["0", "1"]
    assert visible_ids({}, num_ranks=2) == ["0", "1"]
