from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from airflow_llmsched.agent import wire
from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers.byte_gpt import refuse_model_parallelism
from airflow_llmsched.trainers.checkpointing import load_model
from airflow_llmsched.trainers.data import TokenStream, read_manifest
from airflow_llmsched.trainers.folders import damage, read_state
from airflow_llmsched.trainers.model import ByteGpt
from airflow_llmsched.trainers.settings import DATASET_VARIABLE, TRAIN_VARIABLE, TrainSettings
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
    assert kinds[:2] == ["beat", "span"]  # a sign of life before the rendezvous, then the init span
    assert kinds.count("step") == 6


def test_continued_training_starts_with_the_loss_of_the_base_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path)
    root = tmp_path / "base"
    assert train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset, root=root)) == 0
    base = root / "step-00000006"
    # another seed: other random weights to replace, and another order of the data
    settings = small_settings(seed=5, num_steps=3)
    environment = rank_environment(
        settings, dataset=dataset, root=tmp_path / "own", spool=tmp_path / "spool", init_from=base
    )

    ranks = train_ranks(2, environment | {wire.LAYOUT: '{"dp":2,"zero_stage":3}'}, log_dir=tmp_path / "logs")

    assert ranks.returncode == 0, ranks.stderr
    told = losses(tmp_path / "spool")
    assert list(told) == [1, 2, 3]
    assert told[1] == pytest.approx(first_loss(settings, dataset, weights=base), rel=1e-5)
    assert told[1] < first_loss(settings, dataset, weights=None) - 0.5
    assert read_state(tmp_path / "own" / "step-00000003").num_tokens_seen == 3 * 128


def first_loss(settings: TrainSettings, dataset: str, *, weights: Path | None) -> float:
    """The mean loss of the first step's batch, by the weights at a checkpoint or the seed's own."""
    model = ByteGpt(settings)
    if weights:
        load_model(str(weights), model=model)
    stream = TokenStream(read_manifest(dataset).train, window_tokens=settings.window_tokens, seed=settings.seed)
    inputs, targets = stream.read(0, settings.phases[0].tokens_per_step)
    with torch.inference_mode():
        logits = model(torch.from_numpy(inputs).long().view(-1, settings.sequence_length_tokens))
        return functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).long()).item()


def test_a_run_with_a_checkpoint_of_its_own_does_not_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, root = small_dataset(tmp_path), tmp_path / "root"
    train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset, root=root))
    environment = rank_environment(
        small_settings(),
        dataset=dataset,
        spool=tmp_path / "spool",
        resume_from=root / "step-00000003",
        init_from=root / "step-00000006",
    )

    assert train_here(monkeypatch, environment) == 0
    assert list(losses(tmp_path / "spool")) == [4, 5, 6]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [({"hidden_size": 64}, "hidden_size = 64: checkpoint .* was trained with 32"), ({}, "damaged: __0_0.distcp")],
)
def test_weights_of_another_shape_or_with_a_broken_seal_are_refused_on_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    wanted: dict[str, int],
    words: str,
) -> None:
    dataset, root = small_dataset(tmp_path), tmp_path / "root"
    train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset, root=root))
    base = root / "step-00000006"
    if not wanted:
        with (base / "__0_0.distcp").open("r+b") as file:
            file.write(b"other")
    capfd.readouterr()

    assert train_here(monkeypatch, rank_environment(small_settings(**wanted), dataset=dataset, init_from=base)) == 1
    error = capfd.readouterr().err
    assert re.search(words, error)
    assert len(error.splitlines()) == 1


def test_weights_that_are_not_there_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = rank_environment(small_settings(), dataset=small_dataset(tmp_path), init_from=tmp_path / "none")

    assert train_here(monkeypatch, environment) == 1
    assert f"checkpoint {tmp_path / 'none'} was not saved by this trainer" in capfd.readouterr().err


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
    # The first to refuse has the other ended, which may not have come to say so.
    said = rank_log(tmp_path / "logs", 0) + rank_log(tmp_path / "logs", 1)
    assert "num_sequences = 3: must be a multiple of the 2 ranks" in said
    assert [record["kind"] for record in records(tmp_path / "spool")] == ["beat"]


def test_a_folder_that_cannot_be_made_is_named_on_one_line_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root").write_text("a file in its place")
    root = tmp_path / "root" / "g0001-a0001"
    spool = tmp_path / "spool"
    environment = rank_environment(small_settings(), dataset=small_dataset(tmp_path), root=root, spool=spool)
    assert train_here(monkeypatch, environment) == 1
    assert f"llmsched trainer: cannot make {root}, to save in: Not a directory" in capfd.readouterr().err
    assert losses(spool) == {}


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
