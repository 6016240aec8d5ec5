from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangSpec, Launcher
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.engines.local.render import is_attempt_name, render
from airflow_llmsched.errors import SpecError

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "local_launch_request.json"
NODES = (NodeId("n0"), NodeId("n1"))


def gang(**changes: Any) -> GangSpec:
    slots = tuple(
        RankSlot(rank=rank, node=NODES[rank // 2], slot=1 - rank % 2, local_rank=rank % 2) for rank in range(4)
    )
    return replace(
        GangSpec(
            key=AttemptKey(run=RunKey("ls-abcdefghij0123456789"), generation=2, attempt=3),
            placement=Placement(slots=slots),
            layout=ParallelLayout(dp=4, zero_stage=2, micro_batch_size=8, num_micro_batches=2),
            command=("python", "-m", "train", "--name", 'it\'s "odd" $(touch x)'),
            channel_root="/state/runs/x/channel",
            launcher=Launcher.TORCHRUN,
            environment={"LLMSCHED_DATASET": "/data/manifest.json", "A": "line one\nline two"},
            lease_s=90.0,
            origin=RunOrigin(
                deployment_id="3c9d", run=RunKey("ls-abcdefghij0123456789"), dag_id="pretrain", run_id="manual"
            ),
        ),
        **changes,
    )


def test_request_is_as_written_down() -> None:
    request = render(gang(), nodes=NODES, slots_per_node=2)
    assert json.loads(codec.to_json(request)) == json.loads(GOLDEN.read_text())


def test_attempt_names_are_single_path_components() -> None:
    assert is_attempt_name("ls-abc-g1-a1")
    for name in ("", ".", "..", ".new-1", "x", "a/b-g1-a1", "a b-g1-a1", "x" * 129 + "-g1-a1", "a-g1-a1\n", "-x-g1-a1"):
        assert not is_attempt_name(name), name


def place(*places: tuple[str, int]) -> Placement:
    return Placement(
        slots=tuple(
            RankSlot(rank=rank, node=NodeId(node), slot=slot, local_rank=0) for rank, (node, slot) in enumerate(places)
        )
    )


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"key": AttemptKey(run=RunKey("../../etc"), generation=1, attempt=1)}, "key.run"),
        ({"key": AttemptKey(run=RunKey("x" * 200), generation=1, attempt=1)}, "key.run"),
        ({"command": ()}, "command"),
        ({"command": ("",)}, "command"),
        ({"command": ("python", "a\0b")}, "command"),
        ({"channel_root": "relative/path"}, "channel_root"),
        ({"channel_root": "s3://bucket/channel"}, "channel_root"),
        ({"channel_root": "s3://bucket/channel", "channel_links": "relative/path"}, "channel_links"),
        ({"environment": {"A=B": "x"}}, "environment"),
        ({"environment": {"": "x"}}, "environment"),
        ({"environment": {"A": "x\0"}}, "environment"),
        ({"environment": {"LLMSCHED_SPOOL": "/elsewhere"}}, "environment"),
        ({"start_limit_s": 0.0}, "start_limit_s"),
        ({"flush_interval_s": float("nan")}, "flush_interval_s"),
        ({"grace_s": -1.0}, "grace_s"),
        ({"exit_grace_s": -0.1}, "exit_grace_s"),
        ({"layout": ParallelLayout(dp=2)}, "placement"),
        ({"placement": place(("n0", 0), ("n0", 1), ("n1", 0), ("n7", 0))}, "placement"),
        ({"placement": place(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 2))}, "placement"),
        ({"placement": place(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 0))}, "placement"),
        ({"placement": Placement(slots=tuple(reversed(gang().placement.slots)))}, "placement"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_the_field_that_is_wrong(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        render(gang(**changes), nodes=NODES, slots_per_node=2)
    assert refused.value.path == path


def test_value_of_a_refused_environment_entry_is_not_shown() -> None:
    with pytest.raises(SpecError) as refused:
        render(gang(environment={"TOKEN": "tell-no-one\0"}), nodes=NODES, slots_per_node=2)
    assert "tell-no-one" not in str(refused.value)
