from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.hf_deepspeed import deepspeed_state
from airflow_llmsched.checkpoints.scan import Torn, file_sizes
from tests.support.checkpoint_files import add_deepspeed, save_hf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return add_deepspeed(save_hf(tmp_path / "checkpoint-5"), num_dp_ranks=2)


def test_a_checkpoint_without_deepspeed_has_no_state(tmp_path: Path) -> None:
    save_hf(tmp_path / "checkpoint-5")
    assert deepspeed_state(tmp_path / "checkpoint-5", file_sizes(tmp_path / "checkpoint-5")) is None


def test_the_pointer_is_followed(path: Path) -> None:
    (path / "latest").write_text("global_step5\n")
    state = deepspeed_state(path, file_sizes(path))
    assert state
    assert state.folder == "global_step5"
    assert len(state.sizes) == 3
    assert not state.convertible


@pytest.mark.parametrize("tag", ["", "global_step6", "../checkpoint-5", "..", "/", "\ufffd", "rng_state.pth"])
def test_a_pointer_to_nothing_tears(path: Path, tag: str) -> None:
    (path / "latest").write_text(tag)
    with pytest.raises(Torn, match="latest names"):
        deepspeed_state(path, file_sizes(path))


def test_a_state_without_its_pointer_tears(path: Path) -> None:
    (path / "latest").unlink()
    with pytest.raises(Torn, match="latest is missing"):
        deepspeed_state(path, file_sizes(path))


def test_a_folder_without_a_model_tears(path: Path) -> None:
    (path / "global_step5" / "mp_rank_00_model_states.pt").unlink()
    with pytest.raises(Torn, match="global_step5 holds no model states"):
        deepspeed_state(path, file_sizes(path))


def test_a_folder_that_vanished_since_the_listing_tears(path: Path) -> None:
    names = file_sizes(path)
    (path / "global_step5").rename(path / "gone")
    with pytest.raises(Torn, match="which is not there"):
        deepspeed_state(path, names)
