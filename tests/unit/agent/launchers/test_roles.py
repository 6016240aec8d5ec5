from __future__ import annotations

import json
from typing import Any

from airflow_llmsched.agent import wire
from tests.support.launching import starts, with_helpers

PORTS = {"n0": [20001, 20002], "n1": [20003]}


def helpers(node: str, **changes: Any) -> list[Any]:
    base = changes.pop("base", None)
    return [start for start in starts(node, base, ports=PORTS, **with_helpers(), **changes) if start.is_helper]


def test_helpers_run_their_roles_command_beside_whatever_starts_the_trainers() -> None:
    for launcher in ("torchrun", "plain", "jax"):
        loader, evaluator = helpers("n0", launcher=launcher)
        assert loader.argv[-2:] == ["load", "it's $(odd)"]
        assert evaluator.argv[-1] == "evaluate"
        assert loader.argv[3] == "airflow_llmsched.agent.rank"


def test_helper_is_told_its_place_in_its_role_and_its_number_in_the_gang() -> None:
    (second,) = helpers("n1")
    names = (wire.ROLE, wire.MEMBER, "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [second.environ[name] for name in names] == ["data_loader", "5", "1", "0", "2", "127.0.1.100", "20001"]


def test_every_process_is_told_where_helpers_are() -> None:
    for start in starts("n1", ports=PORTS, launcher="plain", **with_helpers()):
        assert json.loads(start.environ[wire.ADDRESSES]) == {
            "data_loader": ["127.0.1.100:20001", "127.0.1.101:20003"],
            "evaluator": ["127.0.1.100:20002"],
        }


def test_trainers_are_told_their_role_and_no_number() -> None:
    trainer = starts("n0", ports=PORTS, launcher="plain", **with_helpers())[0]
    assert trainer.environ[wire.ROLE] == "trainer"
    assert wire.MEMBER not in trainer.environ


def test_helper_sees_its_own_accelerators_and_one_without_none() -> None:
    loader, evaluator = helpers("n0", devices={"vendor": "nvidia"})
    assert loader.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert evaluator.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_helper_takes_its_share_of_what_an_engine_bound_after_the_ranks() -> None:
    loader, evaluator = helpers("n0", base={"CUDA_VISIBLE_DEVICES": "4,5,6"})
    assert evaluator.environ["CUDA_VISIBLE_DEVICES"] == "6"
    assert loader.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6"  # it has no slots, and leaves the accelerators alone
    _, unbound = helpers("n0")
    assert "CUDA_VISIBLE_DEVICES" not in unbound.environ


def test_node_of_helpers_alone_starts_no_launcher() -> None:
    changes = with_helpers()
    changes["nodes"] = [{**changes["nodes"][0]}, {**changes["nodes"][1], "ranks": [], "slots": []}]
    started = starts("n1", ports=PORTS, launcher="torchrun", **changes)
    assert [start.is_helper for start in started] == [True]
