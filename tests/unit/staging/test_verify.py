from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.checkpoint import VerifyDepth
from airflow_llmsched.domain.dataset import DatasetManifest, Shard
from airflow_llmsched.domain.workload import DatasetKind, DatasetSpec
from airflow_llmsched.errors import DataError
from airflow_llmsched.staging.shards import stage
from airflow_llmsched.staging.verify import content_digest, load_manifest, verify


@pytest.fixture
def staged(tmp_path: Path) -> DatasetManifest:
    source = tmp_path / "text"
    source.mkdir()
    for index in range(6):
        (source / f"{index}.txt").write_bytes(b"%d" % index * 100)
    spec = DatasetSpec(kind=DatasetKind.FILES, source=str(source), shard_bytes=150, held_out_ratio=0.2)
    return stage(spec, destination=str(tmp_path / "out"))


def damage(manifest: DatasetManifest, how: str) -> Path:
    path = Path(manifest.root) / manifest.train[1].path
    data = path.read_bytes()
    path.unlink()
    if how == "torn":
        path.write_bytes(data[:-1])
    if how == "altered":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    return path


@pytest.mark.parametrize("depth", VerifyDepth)
def test_a_whole_dataset_passes_at_every_depth(staged: DatasetManifest, depth: VerifyDepth) -> None:
    verify(staged, staged.root, depth)


@pytest.mark.parametrize(
    ("how", "depth", "word"),
    [
        ("missing", VerifyDepth.LISTING, "missing"),
        ("missing", VerifyDepth.CONTENT, "missing"),
        ("torn", VerifyDepth.SIZES, "torn"),
        ("altered", VerifyDepth.CONTENT, "other content"),
    ],
)
def test_damage_is_named_by_shard_with_the_next_step(
    staged: DatasetManifest, how: str, depth: VerifyDepth, word: str
) -> None:
    path = damage(staged, how)

    with pytest.raises(DataError, match=word) as caught:
        verify(staged, staged.root, depth)

    assert str(path) in str(caught.value)
    assert "stage the dataset again" in str(caught.value)


@pytest.mark.parametrize(("how", "depth"), [("torn", VerifyDepth.LISTING), ("altered", VerifyDepth.SIZES)])
def test_a_shallow_look_does_not_see_deeper_damage(staged: DatasetManifest, how: str, depth: VerifyDepth) -> None:
    damage(staged, how)

    verify(staged, staged.root, depth)


def test_a_shard_that_cannot_be_read_is_not_called_missing(staged: DatasetManifest) -> None:
    path = damage(staged, "missing")
    path.symlink_to(path)

    with pytest.raises(DataError, match="cannot be read"):
        verify(staged, staged.root, VerifyDepth.SIZES)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"root": "x"'])
def test_a_file_that_is_no_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(DataError, match=r"manifest\.json is no dataset manifest"):
        load_manifest(str(tmp_path / "manifest.json"))


def test_a_missing_manifest_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.json: No such file"):
        load_manifest(str(tmp_path / "nowhere.json"))


def test_an_altered_manifest_is_refused(tmp_path: Path, staged: DatasetManifest) -> None:
    plain = json.loads(codec.to_json(staged))
    plain["train"].pop()
    (tmp_path / "manifest.json").write_text(json.dumps(plain))

    with pytest.raises(DataError, match="altered"):
        load_manifest(str(tmp_path / "manifest.json"))


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd"])
def test_a_manifest_that_leaves_its_folder_is_refused(tmp_path: Path, staged: DatasetManifest, path: str) -> None:
    train = (Shard(path=path, num_bytes=1, sha256="0" * 64),)
    bad = dataclasses.replace(staged, train=train, digest=content_digest(train, staged.held_out))
    (tmp_path / "manifest.json").write_bytes(codec.to_json(bad))

    with pytest.raises(DataError, match="leaves its folder"):
        load_manifest(str(tmp_path / "manifest.json"))


def test_the_digest_tells_training_from_held_out_text() -> None:
    shard = Shard(path="a", num_bytes=1, sha256="0" * 64)

    assert content_digest([shard], []) != content_digest([], [shard])
