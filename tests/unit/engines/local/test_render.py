from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.engines.local.render import render
from airflow_llmsched.errors import SpecError

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "local_launch_request.json"
NODES = (NodeId("n0"), NodeId("n1"))


def gang() -> GangSpec:
    slots = tuple(
        RankSlot(rank=rank, node=NODES[rank // 2], slot=1 - rank % 2, local_rank=rank % 2) for rank in range(4)
    )
    return GangSpec(
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
    )


def test_request_is_as_written_down() -> None:
    request = render(gang(), nodes=NODES, slots_per_node=2)
    assert json.loads(codec.to_json(request)) == json.loads(GOLDEN.read_text())


def test_a_gang_that_needs_more_than_the_engine_has_is_refused() -> None:
    with pytest.raises(SpecError, match="n0"):
        render(gang(), nodes=NODES[:1], slots_per_node=2)
