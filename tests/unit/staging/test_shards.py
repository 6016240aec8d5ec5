from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.workload import DatasetKind, DatasetSpec
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.staging.corpus import Corpus, TextFile, read_corpus
from airflow_llmsched.staging.shards import SEPARATOR, stage
from airflow_llmsched.staging.shards import _Cutter as Cutter
from airflow_llmsched.staging.shards import _pack as pack
from airflow_llmsched.staging.verify import MANIFEST_NAME, load_manifest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "text $(rm -rf x) 'quoted'"
    folder.mkdir()
    for index in range(10):
        (folder / f"part {index}.txt").write_bytes(b"%d:" % index * (100 + index))
    return folder


def spec_for(source: Path | str, *, shard_bytes: int = 300) -> DatasetSpec:
    return DatasetSpec(kind=DatasetKind.FILES, source=str(source), shard_bytes=shard_bytes, held_out_ratio=0.2)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every file, so that a rewrite shows even when the bytes are the same."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def text_of(manifest: DatasetManifest, split: str) -> bytes:
    return b"".join((Path(manifest.root) / shard.path).read_bytes() for shard in getattr(manifest, split))


def test_shards_hold_every_file_once_with_a_separator_behind_it(tmp_path: Path, source: Path) -> None:
    spec = spec_for(source)
    manifest = stage(spec, destination=str(tmp_path / "out"))

    corpus = read_corpus(spec)
    assert text_of(manifest, "train") == b"".join(file.path.read_bytes() + SEPARATOR for file in corpus.train)
    assert text_of(manifest, "held_out") == b"".join(file.path.read_bytes() + SEPARATOR for file in corpus.held_out)
    assert manifest.num_held_out_tokens > 0
    assert all(shard.num_bytes == 300 for shard in manifest.train[:-1])
    assert load_manifest(str(tmp_path / "out" / MANIFEST_NAME)) == manifest


def test_staged_files_are_read_only(tmp_path: Path, source: Path) -> None:
    manifest = stage(spec_for(source), destination=str(tmp_path / "out"))

    names = [MANIFEST_NAME, *(shard.path for shard in (*manifest.train, *manifest.held_out))]
    assert {(tmp_path / "out" / name).stat().st_mode & 0o777 for name in names} == {0o444}


def test_staging_again_writes_nothing(tmp_path: Path, source: Path) -> None:
    first = stage(spec_for(source), destination=str(tmp_path / "out"))
    before = contents(tmp_path / "out")

    again = stage(spec_for(f"{source}/"), destination=f"{tmp_path}/out/")

    assert again == first
    assert contents(tmp_path / "out") == before


def test_other_content_of_the_same_size_is_copied_again(tmp_path: Path, source: Path) -> None:
    first = stage(spec_for(source), destination=str(tmp_path / "out"))
    file = source / "part 3.txt"
    times = file.stat()
    file.write_bytes(file.read_bytes().replace(b"3", b"7"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    second = stage(spec_for(source), destination=str(tmp_path / "out"))

    assert second.digest != first.digest
    assert b"7:7:7:" in text_of(second, "train") + text_of(second, "held_out")


def test_another_shard_size_leaves_none_of_the_old_shards(tmp_path: Path, source: Path) -> None:
    stage(spec_for(source, shard_bytes=50), destination=str(tmp_path / "out"))

    manifest = stage(spec_for(source, shard_bytes=5000), destination=str(tmp_path / "out"))

    names = {shard.path for shard in (*manifest.train, *manifest.held_out)}
    assert {path.name for path in (tmp_path / "out").glob("*.bin")} == names


def test_a_damaged_shard_is_staged_again(tmp_path: Path, source: Path) -> None:
    manifest = stage(spec_for(source), destination=str(tmp_path / "out"))
    shard = tmp_path / "out" / manifest.train[0].path
    whole = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(b"X" + whole[1:])

    assert stage(spec_for(source), destination=str(tmp_path / "out")) == manifest
    assert shard.read_bytes() == whole


def test_interrupted_staging_leaves_no_manifest_and_the_next_one_finishes(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    corpus = read_corpus(spec_for(source))
    (source / "part 9.txt").write_bytes(b"changed after it was hashed")

    with pytest.raises(DataError, match=r"part 9\.txt changed while it was being staged"):
        pack(corpus, out, shard_bytes=50)

    assert not (out / MANIFEST_NAME).exists()
    manifest = stage(spec_for(source, shard_bytes=50), destination=str(out))
    assert b"changed after" in text_of(manifest, "train") + text_of(manifest, "held_out")
    assert not list(out.glob("*.partial"))


def test_a_full_disk_names_the_destination_and_leaves_no_manifest(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    stage(spec_for(source), destination=str(out))
    script = (
        "import sys\n"
        "from airflow_llmsched.domain.workload import DatasetKind, DatasetSpec\n"
        "from airflow_llmsched.errors import DataError\n"
        "from airflow_llmsched.staging.shards import stage\n"
        "try:\n"
        "    spec = DatasetSpec(kind=DatasetKind.FILES, source=sys.argv[1], shard_bytes=5000)\n"
        "    stage(spec, destination=sys.argv[2])\n"
        "except DataError as error:\n"
        "    sys.exit(str(error))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script, str(source), str(out)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )

    assert ended.returncode == 1
    assert str(out) in ended.stderr
    assert "free space" in ended.stderr
    assert not list(out.glob("*.json"))
    assert not list(out.glob("*.bin"))


def test_an_unwritable_destination_is_named(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(DataError, match="file/out"):
        stage(spec_for(source), destination=str(tmp_path / "file" / "out"))


def test_a_destination_within_the_text_is_refused(source: Path) -> None:
    with pytest.raises(SpecError, match=r"data\.destination"):
        stage(spec_for(source), destination=str(source / "out"))


def test_two_at_once_agree_on_one_result(tmp_path: Path, source: Path) -> None:
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(
            target=stage, args=(spec_for(source, shard_bytes=7),), kwargs={"destination": str(tmp_path / "o")}
        )
        for _ in range(2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(30)

    assert [job.exitcode for job in jobs] == [0, 0]
    before = contents(tmp_path / "o")
    stage(spec_for(source, shard_bytes=7), destination=str(tmp_path / "o"))
    assert contents(tmp_path / "o") == before


@given(blocks=st.lists(st.binary(max_size=20), max_size=10), size=st.integers(1, 15))
def test_cutting_a_stream_loses_and_repeats_nothing(blocks: list[bytes], size: int) -> None:
    cutter = Cutter(iter(blocks))
    stretches = []
    while not cutter.at_end():
        stretches.append(b"".join(cutter.take(size)))

    assert b"".join(stretches) == b"".join(blocks)
    assert all(len(stretch) == size for stretch in stretches[:-1])


def test_a_file_that_is_not_what_was_hashed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "moving.txt"
    path.write_bytes(b"now")
    file = TextFile(name="moving.txt", path=path, num_bytes=3, sha256="0" * 64)

    with pytest.raises(DataError, match=r"moving\.txt"):
        pack(Corpus(source=str(tmp_path), train=(file,), held_out=()), tmp_path, shard_bytes=2)
