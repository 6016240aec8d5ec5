from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import wire
from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers.folders import read_state
from airflow_llmsched.trainers.loop import refuse_other_run
from airflow_llmsched.trainers.settings import TrainPhase
from tests.support.trainer import losses, marks, rank_environment, records, small_dataset, small_settings, train_here

pytestmark = pytest.mark.torch


def order(spool: Path, *, checkpoint_seq: int = 0, stop: str | None = None) -> None:
    spool.mkdir(parents=True, exist_ok=True)
    orders = {"v": 1, "checkpoint_seq": checkpoint_seq, "stop": stop}
    (spool / wire.ORDERS).write_text(json.dumps(orders))


def test_the_loss_falls_and_does_not_depend_on_the_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path)
    for size in (1, 3, 8):
        settings = small_settings(micro_batch_size=size, num_steps=12)
        spool = tmp_path / str(size)
        assert train_here(monkeypatch, rank_environment(settings, dataset=dataset, spool=spool)) == 0

    curve = losses(tmp_path / "8")
    assert curve[12] < curve[1] - 0.5
    assert losses(tmp_path / "1") == pytest.approx(curve, rel=1e-5)
    assert losses(tmp_path / "3") == pytest.approx(curve, rel=1e-5)


def test_checkpoints_are_saved_at_the_interval_and_at_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(num_steps=7, checkpoint_interval_steps=2, keep_last=2)
    root, spool = tmp_path / "root", tmp_path / "spool"

    train_here(monkeypatch, rank_environment(settings, dataset=small_dataset(tmp_path), root=root, spool=spool))

    assert marks(spool) == [2, 4, 6, 7]
    assert sorted(path.name for path in root.iterdir()) == ["step-00000006", "step-00000007"]
    assert read_state(root / "step-00000007").num_tokens_seen == 7 * 8 * 16


def test_without_an_interval_only_the_last_step_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings(checkpoint_interval_steps=None)
    root, spool = tmp_path / "root", tmp_path / "spool"

    train_here(monkeypatch, rank_environment(settings, dataset=small_dataset(tmp_path), root=root, spool=spool))

    assert marks(spool) == [6]


def test_an_interval_in_seconds_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings(num_steps=3, checkpoint_interval_steps=None, checkpoint_interval_s=0.2)
    root, spool = tmp_path / "root", tmp_path / "spool"
    inject = {"hang_s": 0.3, "hang_at_step": 2, "hang_rank": 0}
    dataset = small_dataset(tmp_path)

    train_here(monkeypatch, rank_environment(settings, dataset=dataset, root=root, spool=spool, inject=inject))

    assert 2 in marks(spool)
    assert marks(spool)[-1] == 3


def test_an_ordered_interval_replaces_that_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings(num_steps=5, checkpoint_interval_steps=1)
    root, spool = tmp_path / "root", tmp_path / "spool"
    spool.mkdir()
    orders = {"v": 1, "checkpoint_seq": 0, "stop": None, "checkpoint_interval_s": 3600.0}
    (spool / wire.ORDERS).write_text(json.dumps(orders))

    train_here(monkeypatch, rank_environment(settings, dataset=small_dataset(tmp_path), root=root, spool=spool))

    assert marks(spool) == [5]


def test_an_ordered_checkpoint_is_saved_once_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_settings(checkpoint_interval_steps=None)
    root, spool = tmp_path / "root", tmp_path / "spool"
    order(spool, checkpoint_seq=1)

    train_here(monkeypatch, rank_environment(settings, dataset=small_dataset(tmp_path), root=root, spool=spool))

    assert marks(spool) == [1, 6]


def test_an_order_to_stop_saves_and_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, spool = tmp_path / "root", tmp_path / "spool"
    order(spool, stop="the user said so")
    environment = rank_environment(small_settings(), dataset=small_dataset(tmp_path), root=root, spool=spool)

    assert train_here(monkeypatch, environment) == 0
    assert sorted(losses(spool)) == [1]
    assert marks(spool) == [1]


def test_steps_and_saves_follow_each_other_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, spool = tmp_path / "root", tmp_path / "spool"
    inject = {"slow_save_s": 0.3, "at_step": 3}
    dataset = small_dataset(tmp_path)
    start_s = time.time()

    train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset, root=root, spool=spool, inject=inject))

    timed = [record for record in records(spool) if "start_s" in record]
    assert [record.get("span", "step") for record in timed] == ["init", *["step"] * 3, "save", *["step"] * 3, "save"]
    assert timed[0]["start_s"] >= start_s
    gaps = [after["start_s"] - before["end_s"] for before, after in itertools.pairwise(timed)]
    assert max(gaps) < 0.05
    saves = [record["end_s"] - record["start_s"] for record in timed if record.get("span") == "save"]
    assert saves[0] > 0.3


def test_a_resume_from_the_last_step_trains_nothing_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, root = small_dataset(tmp_path), tmp_path / "root"
    train_here(monkeypatch, rank_environment(small_settings(), dataset=dataset, root=root))
    environment = rank_environment(
        small_settings(), dataset=dataset, root=root, spool=tmp_path / "spool", resume_from=root / "step-00000006"
    )

    assert train_here(monkeypatch, environment) == 0
    assert [record["kind"] for record in records(tmp_path / "spool")] == ["beat", "span"]


def test_a_later_phase_changes_batch_and_sequence_and_survives_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = TrainPhase(from_tokens=250, sequence_length_tokens=24, num_sequences=4)
    settings = small_settings(later_phases=(later,), checkpoint_interval_steps=3, keep_last=5)
    dataset, root = small_dataset(tmp_path), tmp_path / "root"
    train_here(monkeypatch, rank_environment(settings, dataset=dataset, root=root, spool=tmp_path / "a"))

    train_here(
        monkeypatch,
        rank_environment(
            settings, dataset=dataset, root=root, spool=tmp_path / "b", resume_from=root / "step-00000003"
        ),
    )

    tokens = [record["num_tokens"] for record in records(tmp_path / "a") if record["kind"] == "step"]
    assert tokens == [128, 128, 96, 96, 96, 96]
    assert losses(tmp_path / "b") == pytest.approx(
        {step: loss for step, loss in losses(tmp_path / "a").items() if step > 3}, rel=1e-5
    )


def test_a_loss_that_is_no_number_ends_the_run_by_name_and_saves_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = small_settings(learning_rate=1e30, warmup_steps=0, num_steps=50, checkpoint_interval_steps=None)
    root = tmp_path / "root"

    assert train_here(monkeypatch, rank_environment(settings, dataset=small_dataset(tmp_path), root=root)) == 1
    assert "learning_rate = 1e+30: the loss of step" in capfd.readouterr().err
    assert list(root.iterdir()) == []


def test_a_checkpoint_of_another_dataset_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    train_here(monkeypatch, rank_environment(small_settings(), dataset=small_dataset(tmp_path), root=root))
    (tmp_path / "other").mkdir()
    other = small_dataset(tmp_path / "other")
    plain = json.loads(Path(other).read_text())
    Path(other).unlink()
    Path(other).write_text(json.dumps(plain | {"digest": "f" * 64}))

    environment = rank_environment(small_settings(), dataset=other, root=root, resume_from=root / "step-00000006")

    assert train_here(monkeypatch, environment) == 1
    assert "was trained on dataset" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 64}, {"seed": 1}, {"tied_embeddings": True}, {"sequence_length_tokens": 8}]
)
def test_a_checkpoint_of_another_model_or_data_order_is_refused_by_field(changes: dict[str, Any]) -> None:
    (field,) = changes
    name = {"sequence_length_tokens": "window_tokens"}.get(field, field)

    with pytest.raises(SpecError, match=f"{name} = .*step-3 was trained with"):
        refuse_other_run(small_settings(), small_settings(**changes), path="step-3")


def test_what_does_not_change_the_model_may_change_on_a_resume() -> None:
    wanted = small_settings(num_steps=99, learning_rate=1.0, num_sequences=4, micro_batch_size=1, num_kv_heads=2)

    refuse_other_run(small_settings(), wanted, path="step-3")
