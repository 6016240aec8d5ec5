from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.hf_trainer import HfTrainerFormat
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError
from tests.support.checkpoint_files import add_deepspeed, archive, save_dcp, save_hf
from tests.support.unprivileged import as_nobody, open_folder

FORMAT = HfTrainerFormat()


def newest(root: Path) -> CheckpointRef:
    return next(FORMAT.scan(str(root)))


def test_a_half_written_last_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    """Field case G1: checkpoint-200 without trainer_state.json, checkpoint-100 whole."""
    save_hf(tmp_path / "checkpoint-100")
    (save_hf(tmp_path / "checkpoint-200") / "trainer_state.json").unlink()
    torn, whole = FORMAT.scan(str(tmp_path))
    assert (torn.step, torn.torn_reason) == (200, "trainer_state.json is missing: its save did not finish")
    assert (whole.step, whole.complete) == (100, True)


def test_a_pointer_to_a_state_that_is_not_there_gives_way_to_the_one_before(tmp_path: Path) -> None:
    """Field case G5: latest = global_step400 but only global_step300 exists."""
    add_deepspeed(save_hf(tmp_path / "checkpoint-300"), num_dp_ranks=2)
    broken = add_deepspeed(save_hf(tmp_path / "checkpoint-400"), num_dp_ranks=2)
    (broken / "global_step400").rename(broken / "global_step300")
    torn, whole = FORMAT.scan(str(tmp_path))
    assert (torn.step, torn.torn_reason) == (400, "latest names 'global_step400', which is not there")
    assert (whole.step, whole.complete) == (300, True)
    (broken / "latest").unlink()
    assert "latest is missing" in str(newest(tmp_path).torn_reason)


def test_a_temporary_directory_that_looks_full_is_not_the_newest(tmp_path: Path) -> None:
    """Field case G10: tmp-checkpoint-500 full-looking, checkpoint-400 whole."""
    save_hf(tmp_path / "checkpoint-400")
    save_hf(tmp_path / "checkpoint-500").rename(tmp_path / "tmp-checkpoint-500")
    assert next(ref for ref in FORMAT.scan(str(tmp_path)) if ref.complete).step == 400


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_seven_of_eight_ranks_are_not_a_checkpoint(tmp_path: Path, rank: int) -> None:
    """Field case G12. The last rank is known by the optimizer states of the others."""
    path = add_deepspeed(save_hf(tmp_path / "checkpoint-5", num_ranks=8), num_dp_ranks=8)
    assert newest(tmp_path).world_size == 8
    (path / f"rng_state_{rank}.pth").unlink()
    assert (
        f"only 7 of 8 ranks have their part of the random state (rng_state_R.pth); missing: rank {rank}"
        == newest(tmp_path).torn_reason
    )


def test_an_index_that_names_an_absent_shard_is_reported_by_file(tmp_path: Path) -> None:
    """Field case G13."""
    path = save_hf(tmp_path / "checkpoint-5")
    (path / "model-00002-of-00002.safetensors").unlink()
    reason = str(newest(tmp_path).torn_reason)
    assert "model.safetensors.index.json" in reason
    assert "model-00002-of-00002.safetensors is missing" in reason


def test_optimizer_state_of_eight_ranks_is_not_given_to_sixteen(tmp_path: Path) -> None:
    """Field case G16, with the files that DeepSpeed writes."""
    add_deepspeed(save_hf(tmp_path / "checkpoint-5", num_ranks=8), num_dp_ranks=8)
    ref = newest(tmp_path)
    assert ref.complete
    refused = FORMAT.can_resume(ref, ParallelLayout(dp=16))
    assert not refused.ok
    assert "saved by 8 data-parallel ranks and 16 are offered" in refused.reason
    assert "keep 8, or convert" in refused.reason
    assert not FORMAT.can_resume(ref, ParallelLayout(dp=4)).ok
    assert FORMAT.can_resume(ref, ParallelLayout(dp=8)).ok


def test_a_universal_checkpoint_fits_any_number_of_ranks(tmp_path: Path) -> None:
    """Field case G16: unless a convertible format is declared."""
    path = add_deepspeed(save_hf(tmp_path / "checkpoint-5", num_ranks=8), num_dp_ranks=8)
    (path / "latest_universal").write_text("global_step5_universal")
    assert FORMAT.can_resume(newest(tmp_path), ParallelLayout(dp=16)).ok


@pytest.mark.parametrize("form", ["rank_{}.pt", "optimizer_rank_{}.pt", "rank_{}/"])
def test_other_per_rank_state_is_tied_to_its_ranks_too(tmp_path: Path, form: str) -> None:
    """Field case G16: rank_0..7 files."""
    path = save_hf(tmp_path / "checkpoint-5")
    (path / "optimizer.pt").unlink()
    (path / "rng_state.pth").unlink()
    for rank in range(8):
        if form.endswith("/"):
            (path / form.format(rank)).mkdir()
        else:
            (path / form.format(rank)).write_bytes(archive(b"optimizer"))
    ref = newest(tmp_path)
    assert (ref.complete, ref.world_size) == (True, 8)
    assert FORMAT.can_resume(ref, ParallelLayout(dp=4, tp=2)).ok
    assert "saved by 8 ranks and 16 are offered" in FORMAT.can_resume(ref, ParallelLayout(dp=16)).reason


@pytest.mark.parametrize(
    ("name", "reason"), [("optimizer.pt", "no optimizer state"), ("scheduler.pt", "learning rate would silently start")]
)
def test_a_checkpoint_without_optimizer_or_scheduler_is_sound_but_cannot_be_resumed_from(
    tmp_path: Path, name: str, reason: str
) -> None:
    (save_hf(tmp_path / "checkpoint-5") / name).unlink()
    ref = newest(tmp_path)
    assert ref.complete
    assert isinstance(FORMAT.verify(ref, depth=VerifyDepth.CONTENT), Sound)
    refused = FORMAT.can_resume(ref, ParallelLayout(dp=1))
    assert not refused.ok
    assert reason in refused.reason


def test_sharded_fsdp_state_reshards_and_is_checked_like_any_torch_checkpoint(tmp_path: Path) -> None:
    path = save_hf(tmp_path / "checkpoint-5", num_ranks=2)
    for part in (*path.glob("model*"), path / "optimizer.pt"):
        part.unlink()
    save_dcp(path / "pytorch_model_fsdp_0")
    save_dcp(path / "optimizer_0")
    ref = newest(tmp_path)
    assert FORMAT.can_resume(ref, ParallelLayout(dp=3)).ok
    assert isinstance(FORMAT.verify(ref, depth=VerifyDepth.CONTENT), Sound)
    (path / "optimizer_0" / "__1_0.distcp").unlink()
    assert newest(tmp_path).torn_reason == "in optimizer_0/ __1_0.distcp is missing"
    (path / "optimizer_0" / ".metadata").unlink()
    assert "in optimizer_0/ .metadata is missing" in str(newest(tmp_path).torn_reason)


def test_damage_in_the_deepspeed_folder_is_found(tmp_path: Path) -> None:
    path = add_deepspeed(save_hf(tmp_path / "checkpoint-5"), num_dp_ranks=1)
    ref = newest(tmp_path)
    assert isinstance(FORMAT.verify(ref, depth=VerifyDepth.CONTENT), Sound)
    state = path / "global_step5" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    state.write_bytes(state.read_bytes()[:-5])
    verdict = FORMAT.verify(ref, depth=VerifyDepth.SIZES)
    assert isinstance(verdict, Damaged)
    assert state.name in verdict.reason


def test_a_checkpoint_without_permission_is_unknown_not_damaged() -> None:
    with open_folder() as root:
        path = save_hf(root / "checkpoint-5")
        (ref,) = FORMAT.scan(str(root))
        path.chmod(0)
        try:
            with as_nobody():
                for depth in VerifyDepth:
                    with pytest.raises(CouldNotLookError):
                        FORMAT.verify(ref, depth=depth)
                with pytest.raises(CouldNotLookError):
                    FORMAT.can_resume(ref, ParallelLayout(dp=1))
        finally:
            path.chmod(0o755)
