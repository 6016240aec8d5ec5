from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_llmsched.agent.seal import seal
from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError
from tests.support.checkpoint_files import Call, dcp_metadata, save_dcp, to_pickle
from tests.support.unprivileged import as_nobody, open_folder

FORMAT = DcpFormat()


def newest(root: Path) -> CheckpointRef:
    return next(FORMAT.scan(str(root)))


def test_shards_without_metadata_give_way_to_the_older_step(tmp_path: Path) -> None:
    """Field case G2: step_200 has all .distcp shards, no .metadata."""
    save_dcp(tmp_path / "step_100")
    (save_dcp(tmp_path / "step_200") / ".metadata").unlink()
    torn, whole = FORMAT.scan(str(tmp_path))
    assert (torn.step, torn.torn_reason) == (200, ".metadata is missing: its save did not finish")
    assert (whole.step, whole.complete) == (100, True)


def test_step_10000_is_newer_than_step_9000(tmp_path: Path) -> None:
    """Field case G7."""
    save_dcp(tmp_path / "step_9000")
    save_dcp(tmp_path / "step_10000")
    assert newest(tmp_path).step == 10_000


def test_a_malicious_metadata_is_damaged_and_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    path = save_dcp(tmp_path / "root" / "step-5")
    (ref,) = FORMAT.scan(str(tmp_path / "root"))
    (path / ".metadata").write_bytes(to_pickle(Call("os", "system", (f"touch {marker}",))))
    assert "os.system" in str(newest(tmp_path / "root").torn_reason)
    for depth in VerifyDepth:
        verdict = FORMAT.verify(ref, depth=depth)
        assert isinstance(verdict, Damaged)
        assert ".metadata names os.system" in verdict.reason
    assert not FORMAT.can_resume(ref, ParallelLayout(dp=2)).ok
    assert not marker.exists()


def test_a_malicious_metadata_under_a_seal_is_found_before_it_is_loaded(tmp_path: Path) -> None:
    path = save_dcp(tmp_path / "step-5")
    (path / ".metadata").write_bytes(to_pickle(Call("os", "system", ("true",))))
    seal(path, step=5, world_size=2)
    ref = newest(tmp_path)
    assert ref.complete  # the listing believes the seal and does not read the file
    assert isinstance(FORMAT.verify(ref, depth=VerifyDepth.SIZES), Damaged)
    assert not FORMAT.can_resume(ref, ParallelLayout(dp=2)).ok


def test_a_seal_is_believed_over_the_listing(tmp_path: Path) -> None:
    path = save_dcp(tmp_path / "step-5")
    (path / "dataloader.pt").write_bytes(b"position")
    seal(path, step=5, world_size=2)
    (path / "dataloader.pt").unlink()
    assert newest(tmp_path).torn_reason == "dataloader.pt is missing"


def test_a_seal_made_before_the_metadata_is_not_believed(tmp_path: Path) -> None:
    path = save_dcp(tmp_path / "step-5")
    metadata = (path / ".metadata").read_bytes()
    (path / ".metadata").unlink()
    seal(path, step=5, world_size=2)
    assert ".metadata is missing" in str(newest(tmp_path).torn_reason)
    (path / ".metadata").write_bytes(metadata)
    assert "sealed before its save had finished" in str(newest(tmp_path).torn_reason)


def test_a_seal_over_a_shard_too_short_for_its_metadata_is_found_by_size(tmp_path: Path) -> None:
    path = save_dcp(tmp_path / "step-5")
    (path / "__1_0.distcp").write_bytes(b"short")
    seal(path, step=5, world_size=2)
    verdict = FORMAT.verify(newest(tmp_path), depth=VerifyDepth.SIZES)
    assert isinstance(verdict, Damaged)
    assert "__1_0.distcp has 5 bytes" in verdict.reason


def test_it_reshards_to_any_number_of_ranks_and_says_so(tmp_path: Path) -> None:
    save_dcp(tmp_path / "step-5", num_ranks=4)
    for dp in (1, 2, 4, 16):
        found = FORMAT.can_resume(newest(tmp_path), ParallelLayout(dp=dp))
        assert found.ok
        assert f"{dp} ranks" in found.reason


def test_ranks_that_saved_without_coordination_need_the_same_number(tmp_path: Path) -> None:
    path = save_dcp(tmp_path / "step-5", num_ranks=2)
    (path / ".metadata").unlink()
    for rank in range(2):
        (path / f"__{rank}.metadata").write_bytes(dcp_metadata({"optim.w": (f"__{rank}_0.distcp", 0, 9)}))
    ref = newest(tmp_path)
    assert (ref.complete, ref.world_size) == (True, 2)
    assert FORMAT.can_resume(ref, ParallelLayout(dp=1, tp=2)).ok
    refused = FORMAT.can_resume(ref, ParallelLayout(dp=1))
    assert not refused.ok
    assert "saved by 2 ranks" in refused.reason
    assert "1 are offered" in refused.reason


def test_a_model_export_cannot_be_resumed_from(tmp_path: Path) -> None:
    path = tmp_path / "step-5"
    path.mkdir()
    (path / "__0_0.distcp").write_bytes(b"x" * 10)
    (path / ".metadata").write_bytes(dcp_metadata({"layers.w": ("__0_0.distcp", 0, 10)}))
    ref = newest(tmp_path)
    assert ref.complete
    refused = FORMAT.can_resume(ref, ParallelLayout(dp=1))
    assert (refused.ok, "model only" in refused.reason) == (False, True)


def test_a_checkpoint_without_permission_is_unknown_not_damaged() -> None:
    with open_folder() as root:
        path = save_dcp(root / "step-5")
        (ref,) = FORMAT.scan(str(root))
        (path / ".metadata").chmod(0)
        with as_nobody():
            with pytest.raises(CouldNotLookError, match="Permission denied"):
                FORMAT.verify(ref, depth=VerifyDepth.LISTING)
            with pytest.raises(CouldNotLookError, match="Permission denied"):
                FORMAT.can_resume(ref, ParallelLayout(dp=1))
            with pytest.raises(CouldNotLookError, match="Permission denied"):
                list(FORMAT.scan(str(root)))


@pytest.mark.torch
def test_a_save_of_torch_without_coordination_is_read(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(tmp_path / "step-5")
    state = {"model": torch.ones(10), "optim": torch.ones(10), "step": 5}
    dcp.save(state, storage_writer=writer, no_dist=True, use_collectives=False)
    ref = newest(tmp_path)
    assert ref.complete
    assert isinstance(FORMAT.verify(ref, depth=VerifyDepth.CONTENT), Sound)


@pytest.mark.parametrize("sealed", [True, False])
def test_two_thousand_steps_are_scanned_within_a_second(tmp_path: Path, sealed: bool) -> None:
    first = save_dcp(tmp_path / "step-0", num_ranks=2)
    names = [path.name for path in first.iterdir()]
    for step in range(1, 2_000):
        path = tmp_path / f"step-{step}"
        path.mkdir()
        for name in names:
            os.link(first / name, path / name)
    if sealed:
        seal(first, step=0, world_size=2)
        text = (first / "llmsched-seal.json").read_text()
        for step in range(1, 2_000):
            (tmp_path / f"step-{step}" / "llmsched-seal.json").write_text(text.replace('"step":0', f'"step":{step}'))
    start_s = time.process_time()
    refs = list(FORMAT.scan(str(tmp_path)))
    spent_s = time.process_time() - start_s
    assert [ref.step for ref in refs] == list(range(1_999, -1, -1))
    assert all(ref.complete for ref in refs)
    assert spent_s < 1.0
