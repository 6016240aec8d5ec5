from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.trainers.data import TokenStream, permute, read_manifest
from tests.support.trainer import small_dataset


def write_shards(folder: Path, *sizes: int) -> tuple[Path, ...]:
    """Write shards that hold 0, 1, 2... modulo 251 from one to the next: each token says where it stands."""
    text = np.arange(sum(sizes), dtype=np.int64) % 251
    paths = []
    for index, size in enumerate(sizes):
        start = sum(sizes[:index])
        path = folder / f"{index}.bin"
        path.write_bytes(text[start : start + size].astype(np.uint8).tobytes())
        paths.append(path)
    return tuple(paths)


@given(size=st.integers(1, 700), key=st.text(max_size=8))
def test_a_permutation_moves_every_index_to_a_place_of_its_own(size: int, key: str) -> None:
    assert sorted(permute(index, size=size, key=key) for index in range(size)) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(permute(index, size=100, key=key) for index in range(100)) for key in ("0/0", "0/1", "1/0")}

    assert len(orders) == 3
    assert tuple(range(100)) not in orders


def test_an_epoch_has_every_window_once(tmp_path: Path) -> None:
    stream = TokenStream(write_shards(tmp_path, 100, 37, 1, 114), window_tokens=10, seed=3)

    inputs, _ = stream.read(0, stream.num_windows * 10)

    assert stream.num_windows == 25
    assert sorted(inputs.tolist()) == sorted(token % 251 for token in range(250))


def test_targets_are_the_tokens_that_follow_in_the_text(tmp_path: Path) -> None:
    stream = TokenStream(write_shards(tmp_path, 7, 5, 240), window_tokens=10, seed=0)

    inputs, targets = stream.read(3, 500)

    assert len(inputs) == len(targets) == 500
    assert np.array_equal((inputs.astype(int) + 1) % 251, targets)


@given(cuts=st.lists(st.integers(1, 399), max_size=12), seed=st.integers(0, 3))
def test_however_a_run_is_stopped_and_shared_out_it_reads_the_same_stream(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seed: int
) -> None:
    stream = TokenStream(write_shards(tmp_path_factory.mktemp("s"), 50, 53), window_tokens=10, seed=seed)
    whole, _ = stream.read(0, 400)

    borders = [0, *sorted(set(cuts)), 400]
    pieces = [stream.read(start, end - start)[0] for start, end in itertools.pairwise(borders)]

    assert np.array_equal(np.concatenate(pieces), whole)


def test_the_second_epoch_starts_when_the_first_is_used_up(tmp_path: Path) -> None:
    stream = TokenStream(write_shards(tmp_path, 101), window_tokens=10, seed=0)

    first, _ = stream.read(0, 100)
    second, _ = stream.read(100, 100)

    assert not np.array_equal(first, second)
    assert sorted(first.tolist()) == sorted(second.tolist())


def test_an_empty_shard_is_passed_over(tmp_path: Path) -> None:
    stream = TokenStream(write_shards(tmp_path, 0, 60, 0, 41), window_tokens=10, seed=0)

    assert stream.num_windows == 10
    assert len(stream.read(0, 100)[0]) == 100


@pytest.mark.parametrize("sizes", [(), (0,), (10,)])
def test_text_shorter_than_a_window_and_its_target_is_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="fewer than one window of 10"):
        TokenStream(write_shards(tmp_path, *sizes), window_tokens=10, seed=0)


def test_a_staged_manifest_is_read(tmp_path: Path) -> None:
    manifest = small_dataset(tmp_path)

    files = read_manifest(manifest)

    assert files.digest == json.loads(Path(manifest).read_text())["digest"]
    assert len(files.train) > 1
    assert all(path.is_file() for path in (*files.train, *files.held_out))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    manifest = small_dataset(tmp_path)
    read_manifest(manifest).train[1].unlink()

    with pytest.raises(DataError, match=r"train-00001\.bin is missing; stage"):
        read_manifest(manifest)


def test_a_torn_shard_is_named(tmp_path: Path) -> None:
    manifest = small_dataset(tmp_path)
    shard = read_manifest(manifest).train[0]
    shard.chmod(0o644)
    with shard.open("ab") as file:
        file.write(b"x")

    with pytest.raises(DataError, match=r"train-00000\.bin has 3001 bytes, its manifest says 3000"):
        read_manifest(manifest)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"train": [{}], "held_out": [], "digest": ""}'])
def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(DataError, match=r"manifest\.json.*stage the dataset again"):
        read_manifest(str(tmp_path / "manifest.json"))
