from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.dcp_directory import check_contents, manifest_digest, read_contents
from airflow_llmsched.checkpoints.scan import Torn, file_sizes
from airflow_llmsched.domain.checkpoint import VerifyDepth
from tests.support.checkpoint_files import dcp_metadata, save_dcp


def per_rank(directory: Path, num_ranks: int) -> Path:
    """Turn a checkpoint into one saved without coordination: every rank keeps a metadata file of its own."""
    save_dcp(directory, num_ranks=num_ranks)
    (directory / ".metadata").unlink()
    for rank in range(num_ranks):
        data = dcp_metadata({f"optim.{rank}": (f"__{rank}_0.distcp", 0, 10)})
        (directory / f"__{rank}.metadata").write_bytes(data)
    return directory


def test_shards_are_those_the_metadata_names(tmp_path: Path) -> None:
    save_dcp(tmp_path, num_ranks=3)
    (tmp_path / "__9_0.distcp").write_bytes(b"of an older save")
    contents = read_contents(tmp_path, file_sizes(tmp_path))
    found = check_contents(tmp_path, contents, depth=VerifyDepth.CONTENT)
    assert set(found) == {".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}
    assert found["__1_0.distcp"] == (tmp_path / "__1_0.distcp").stat().st_size
    assert contents.world_size is None


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({}, "it is empty"),
        ({"__0_0.distcp": 5, ".metadata.tmp": 3}, r"\.metadata is missing: its save did not finish"),
        ({"model.safetensors.index.json": 5}, r"holds a model export"),
        ({".metadata/": 0}, "is a directory"),
    ],
)
def test_a_directory_without_metadata_says_what_it_is(tmp_path: Path, names: dict[str, int], reason: str) -> None:
    with pytest.raises(Torn, match=reason):
        read_contents(tmp_path, names)


def test_metadata_that_names_nothing_is_torn(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(dcp_metadata({}))
    with pytest.raises(Torn, match="names no stored item"):
        read_contents(tmp_path, file_sizes(tmp_path))


def test_ranks_that_saved_without_coordination_fix_the_world_size(tmp_path: Path) -> None:
    per_rank(tmp_path, 8)
    contents = read_contents(tmp_path, file_sizes(tmp_path))
    assert contents.world_size == 8
    assert len(check_contents(tmp_path, contents, depth=VerifyDepth.SIZES)) == 16


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_a_rank_without_its_metadata_file_tears(tmp_path: Path, rank: int) -> None:
    """Field case G12; rank 7 is known by its shard."""
    (per_rank(tmp_path, 8) / f"__{rank}.metadata").unlink()
    with pytest.raises(Torn, match=f"only 7 of 8 ranks have their metadata file; missing: rank {rank}"):
        read_contents(tmp_path, file_sizes(tmp_path))


def test_a_rank_with_a_shard_but_without_a_completion_marker_tears(tmp_path: Path) -> None:
    save_dcp(tmp_path, num_ranks=8)
    for rank in range(7):
        (tmp_path / f"rank_{rank}.done").write_bytes(b"")
    with pytest.raises(Torn, match="7 of 8 ranks"):
        read_contents(tmp_path, file_sizes(tmp_path))


def test_a_model_without_its_optimizer_is_told_apart(tmp_path: Path) -> None:
    def only_model(name: str, *names: str, step: bool) -> bool:
        directory = tmp_path / name
        directory.mkdir()
        items = dict.fromkeys((*names, *(["step"] if step else [])), ("__0_0.distcp", 0, 1))
        (directory / ".metadata").write_bytes(dcp_metadata(items))
        return read_contents(directory, file_sizes(directory)).only_model

    assert only_model("export", "layers.0.w", "output.w", step=False)
    assert not only_model("with progress", "layers.0.w", step=True)
    assert not only_model("with Adam", "layers.0.w", "state.exp_avg.layers.0.w", step=False)
    assert not only_model("with optimizer", "model.w", "optimizer.w", step=False)


def test_the_digest_depends_on_names_sizes_and_metadata() -> None:
    base = manifest_digest({"a": 1, "b": 2}, {"m": "x"})
    assert base == manifest_digest({"b": 2, "a": 1}, {"m": "x"})
    others = [manifest_digest({"a": 1, "b": 3}, {"m": "x"}), manifest_digest({"a": 1, "b": 2}, {"m": "y"})]
    assert len({base, *others}) == 3
