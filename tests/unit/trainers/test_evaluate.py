from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from airflow_llmsched.trainers.evaluate import main
from tests.support.trainer import losses, rank_environment, small_dataset, small_settings, train_here

pytestmark = pytest.mark.torch


def run(checkpoint: Path, dataset: str, output: Path, *, num_batches: int = 4) -> int:
    arguments = ["--checkpoint", str(checkpoint), "--dataset", dataset, "--num-batches", str(num_batches)]
    return main([*arguments, "--output", str(output)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Checkpoints of steps 8, 16... 40 and their dataset; tests that damage them work on copies."""
    folder = tmp_path_factory.mktemp("trained")
    dataset, root = small_dataset(folder), folder / "root"
    settings = small_settings(num_steps=40, checkpoint_interval_steps=8, keep_last=100)
    environment = rank_environment(settings, dataset=dataset, root=root, spool=folder / "spool")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert train_here(monkeypatch, environment) == 0
    return root, dataset


def test_held_out_loss_is_measured_and_falls_with_training(tmp_path: Path, trained: tuple[Path, str]) -> None:
    root, dataset = trained
    results = []
    for step in (8, 40):
        assert run(root / f"step-{step:08d}", dataset, tmp_path / f"{step}.json") == 0
        results.append(json.loads((tmp_path / f"{step}.json").read_text()))

    early, late = results
    assert late["loss"] < early["loss"] - 0.5
    assert late["loss"] == pytest.approx(losses(root.parent / "spool")[40], abs=0.5)
    assert late["bits_per_byte"] == pytest.approx(late["loss"] / math.log(2))
    assert (late["checkpoint_step"], late["num_tokens"]) == (40, 4 * 8 * 16)
    assert late["dataset_digest"] == json.loads(Path(dataset).read_text())["digest"]


def test_the_same_checkpoint_gives_the_same_result(tmp_path: Path, trained: tuple[Path, str]) -> None:
    root, dataset = trained

    texts = []
    for name in ("a.json", "b.json"):
        run(root / "step-00000040", dataset, tmp_path / name)
        texts.append((tmp_path / name).read_text())

    assert texts[0] == texts[1]


def test_more_batches_than_there_is_text_measure_all_of_it_once(tmp_path: Path, trained: tuple[Path, str]) -> None:
    root, dataset = trained
    num_held_out_bytes = sum(shard["num_bytes"] for shard in json.loads(Path(dataset).read_text())["held_out"])

    run(root / "step-00000040", dataset, tmp_path / "out.json", num_batches=10_000)

    result = json.loads((tmp_path / "out.json").read_text())
    assert result["num_tokens"] == (num_held_out_bytes - 1) // 16 * 16


def test_a_checkpoint_whose_seal_does_not_verify_is_refused(
    tmp_path: Path, trained: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    root, dataset = trained
    copy = shutil.copytree(root / "step-00000040", tmp_path / "step-00000040")
    with (copy / "__0_0.distcp").open("ab") as file:
        file.write(b"x")

    assert run(copy, dataset, tmp_path / "out.json") == 1
    assert "is damaged: __0_0.distcp" in capfd.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_dataset_that_was_not_trained_on_is_refused(
    tmp_path: Path, trained: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    root, dataset = trained
    copy = shutil.copytree(Path(dataset).parent, tmp_path / "data")
    plain = json.loads(Path(dataset).read_text())
    (copy / "manifest.json").unlink()
    (copy / "manifest.json").write_text(json.dumps(plain | {"digest": "f" * 64}))

    assert run(root / "step-00000040", str(copy / "manifest.json"), tmp_path / "out.json") == 1
    assert "evaluate it on its own" in capfd.readouterr().err


def test_an_output_that_cannot_be_written_is_named(
    tmp_path: Path, trained: tuple[Path, str], capfd: pytest.CaptureFixture[str]
) -> None:
    root, dataset = trained

    assert run(root / "step-00000040", dataset, tmp_path / "no" / "out.json") == 1
    assert "no/out.json" in capfd.readouterr().err


def test_a_number_of_batches_below_one_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "manifest.json", tmp_path / "out.json", num_batches=0)

    assert "1 or more" in capfd.readouterr().err
