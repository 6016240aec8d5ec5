from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.agent import wire
from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers.byte_gpt import refuse_model_parallelism
from airflow_llmsched.trainers.folders import damage
from airflow_llmsched.trainers.settings import DATASET_VARIABLE, TRAIN_VARIABLE
from tests.support.trainer import (
    losses,
    marks,
    rank_environment,
    rank_log,
    records,
    small_dataset,
    small_settings,
    train_here,
    train_ranks,
)

pytestmark = pytest.mark.torch


def test_the_loss_curve_goes_on_unbroken_on_fewer_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path)
    settings = small_settings(tied_embeddings=True)
    root = tmp_path / "checkpoints"
    environment = rank_environment(settings, dataset=dataset, root=root, spool=tmp_path / "a")

    first = train_ranks(2, environment | {wire.LAYOUT: '{"dp":2,"zero_stage":3}'}, log_dir=tmp_path / "logs")
    resumed = train_here(
        monkeypatch,
        rank_environment(
            settings,
            dataset=dataset,
            root=root,
            spool=tmp_path / "b",
            resume_from=root / "step-00000003",
            attempt=2,
        ),
    )

    assert first.returncode == 0, first.stderr
    assert resumed == 0
    uninterrupted = losses(tmp_path / "a")
    assert sorted(uninterrupted) == [1, 2, 3, 4, 5, 6]
    assert losses(tmp_path / "b") == pytest.approx({step: uninterrupted[step] for step in (4, 5, 6)}, rel=1e-5)
    assert marks(tmp_path / "a") == [3, 6]
    assert damage(root / "step-00000006") is None
    kinds = [record["kind"] for record in records(tmp_path / "a", rank=1)]
    assert kinds[0] == "span"
    assert kinds.count("step") == 6


def test_a_rank_that_exits_takes_the_others_down_with_a_reason(tmp_path: Path) -> None:
    environment = rank_environment(
        small_settings(num_steps=10_000),
        dataset=small_dataset(tmp_path),
        inject={"exit_code": 3, "rank": 1, "at_step": 3},
    )

    ended = train_ranks(2, environment, log_dir=tmp_path / "logs")

    assert ended.returncode != 0
    assert "LLMSCHED_INJECT" in rank_log(tmp_path / "logs", 1)
    assert "Traceback" not in rank_log(tmp_path / "logs", 0)


def test_ranks_that_do_not_divide_the_batch_are_refused_before_training(tmp_path: Path) -> None:
    environment = rank_environment(
        small_settings(num_sequences=3), dataset=small_dataset(tmp_path), spool=tmp_path / "spool"
    )

    ended = train_ranks(2, environment, log_dir=tmp_path / "logs")

    assert ended.returncode != 0
    assert "num_sequences = 3: must be a multiple of the 2 ranks" in rank_log(tmp_path / "logs", 0)
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize("missing", [TRAIN_VARIABLE, DATASET_VARIABLE])
def test_a_missing_variable_is_named_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], missing: str
) -> None:
    environment = rank_environment(small_settings(), dataset=small_dataset(tmp_path))
    del environment[missing]

    assert train_here(monkeypatch, environment) == 1
    error = capfd.readouterr().err
    assert missing in error
    assert len(error.splitlines()) == 1


def test_a_missing_shard_is_named_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = small_dataset(tmp_path)
    (Path(dataset).parent / "train-00001.bin").unlink()

    assert train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset)) == 1
    error = capfd.readouterr().err
    assert "train-00001.bin is missing" in error
    assert len(error.splitlines()) == 1


def test_training_outside_a_gang_needs_neither_agent_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path)

    assert train_here(monkeypatch, rank_environment(small_settings(num_steps=2), dataset=dataset)) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text", "data"}


@pytest.mark.parametrize("degree", ["tp", "pp", "cp", "ep"])
def test_a_layout_that_splits_the_model_is_refused(degree: str) -> None:
    refuse_model_parallelism({"dp": 4, degree: 1, "zero_stage": 3})

    with pytest.raises(SpecError, match=rf"parallelism\.{degree} = 2"):
        refuse_model_parallelism({"dp": 2, degree: 2})
