"""Helpers beside trainers in a job of a real Slurm, which binds the accelerators itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.domain.gang import GangPhase, GangRole
from airflow_llmsched.domain.placement import HelperSlot
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.testing.engine_contract import SUCCEEDS, ended, gang_of, nodes_of, submit
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_engine import SlurmHarness

pytestmark = pytest.mark.server


@pytest.fixture
def harness(slurm: SlurmCluster) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(slurm)
    yield harness
    harness.close()


def test_helpers_of_a_job_have_their_share_of_what_slurm_bound_and_end_with_the_trainers(
    harness: SlurmHarness, tmp_path: Path
) -> None:
    first, second = (node.id for node in nodes_of(harness)[:2])
    gang = gang_of(harness, [SUCCEEDS] * 3, exit_grace_s=60.0)  # on both slots of the first node, one of the second
    says = (
        "import os, sys, time, pathlib\n"
        "told = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "path = pathlib.Path(sys.argv[1], os.environ['LLMSCHED_ROLE'] + os.environ['RANK'])\n"
        "path.with_suffix('.new').write_text(repr(told)); path.with_suffix('.new').rename(path)\n"
        "time.sleep(1e6)"
    )
    trainer = (
        "import pathlib, sys, time\n"
        "while len([p for p in pathlib.Path(sys.argv[1]).iterdir() if p.suffix == '']) < 2: time.sleep(0.05)"
    )
    roles = (RoleKind.DATA_LOADER, RoleKind.EVALUATOR)
    helpers = (
        HelperSlot(role=roles[0], index=0, node=first),
        HelperSlot(role=roles[1], index=0, node=second, slots=(1,)),
    )
    gang = replace(
        gang,
        command=(sys.executable, "-S", "-E", "-c", trainer, str(tmp_path)),
        placement=replace(gang.placement, helpers=helpers),
        roles=tuple(
            GangRole(kind=kind, command=(sys.executable, "-S", "-E", "-c", says, str(tmp_path))) for kind in roles
        ),
    )
    handle = submit(harness, gang)
    status = ended(harness, handle, limit_s=60.0)
    assert status.phase is GangPhase.SUCCEEDED, status
    assert (tmp_path / "data_loader0").exists()
    assert (tmp_path / "evaluator0").read_text() == "'1'"
