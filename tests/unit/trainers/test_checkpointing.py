from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from airflow_llmsched.errors import DataError
from airflow_llmsched.trainers.checkpointing import _reason as reason
from airflow_llmsched.trainers.checkpointing import load_model, refuse_damage
from airflow_llmsched.trainers.folders import damage
from airflow_llmsched.trainers.model import ByteGpt
from tests.support.trainer import TRAINER_MODULE, rank_environment, small_dataset, small_settings, train_here

pytestmark = pytest.mark.torch


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """Train to the end; return the dataset and the last checkpoint."""
    dataset, root = small_dataset(tmp_path), tmp_path / "root"
    assert train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset, root=root)) == 0
    return dataset, root / "step-00000006"


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_weights_come_back_outside_any_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = trained(tmp_path, monkeypatch)
    model = ByteGpt(small_settings(seed=9))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    load_model(str(path), model=model)

    again = ByteGpt(small_settings(seed=10))
    load_model(str(path), model=again)
    after = model.state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in after)
    assert all(torch.equal(again.state_dict()[name], after[name]) for name in after)


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata", "trainer.json"])
def test_a_resume_from_a_corrupt_checkpoint_names_the_file_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    dataset, path = trained(tmp_path, monkeypatch)
    flip_a_byte(path / file)
    capfd.readouterr()

    environment = rank_environment(small_settings(), dataset=dataset, root=path.parent, resume_from=path)

    assert train_here(monkeypatch, environment) == 1
    error = capfd.readouterr().err
    assert f"checkpoint {path} is damaged: {file} has other content" in error
    assert len(error.splitlines()) == 1


def test_a_checkpoint_without_a_seal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir()

    with pytest.raises(DataError, match="no seal"):
        refuse_damage(str(tmp_path / "step-00000001"))


def test_a_save_that_does_not_fit_names_the_checkpoint_and_leaves_the_older_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, path = trained(tmp_path, monkeypatch)
    environment = rank_environment(
        small_settings(num_steps=8), dataset=dataset, root=path.parent, resume_from=path, attempt=2
    )

    ended = subprocess.run(
        [sys.executable, "-m", TRAINER_MODULE],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )

    assert ended.returncode == 1
    assert f"cannot save checkpoint {path.parent / 'step-00000008'}" in ended.stderr
    assert "free space there" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert damage(path) is None
    assert not (path.parent / "step-00000008").exists()


def test_the_cause_is_dug_out_of_failures_by_rank() -> None:
    full = RuntimeError("writer failed")
    full.__context__ = OSError(errno.ENOSPC, "No space left on device")
    failures = {3: (ValueError("later"), None), 1: (full, None)}

    text = reason(CheckpointException("save", failures))  # type: ignore[arg-type]

    assert text.startswith("rank 1: No space left on device; free space")


def test_an_unknown_failure_is_told_in_one_line() -> None:
    assert reason(ValueError("first\nsecond")) == "ValueError: first"
