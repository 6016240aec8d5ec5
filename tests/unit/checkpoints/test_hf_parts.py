from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.hf_parts import check_parts, read_state
from airflow_llmsched.checkpoints.scan import Torn, file_sizes
from airflow_llmsched.domain.checkpoint import VerifyDepth
from tests.support.checkpoint_files import archive, safetensors, save_hf

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_hf(tmp_path / "checkpoint-5")


def check(path: Path, depth: VerifyDepth = VerifyDepth.CONTENT) -> dict[str, int]:
    return check_parts(path, file_sizes(path), None, depth=depth)


def test_every_file_is_counted_once(path: Path) -> None:
    assert check(path) == {each.name: each.stat().st_size for each in path.iterdir()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"global_step": 5, "epo', "cut short or damaged"),
        ("", "cut short or damaged"),
        ("[" * 100_000, "cut short or damaged"),
        ("[5]", "no JSON object"),
        ('{"global_step": 4}', "is of step 4, the directory of step 5"),
        ("{}", "is of step None"),
    ],
)
def test_a_state_file_that_is_not_whole_or_of_another_step_tears(path: Path, text: str, reason: str) -> None:
    (path / "trainer_state.json").write_text(text)
    with pytest.raises(Torn, match=reason):
        read_state(path, file_sizes(path), 5)


def test_a_state_file_that_is_absent_tears_and_an_empty_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(Torn, match="it is empty"):
        read_state(tmp_path, {}, 5)
    with pytest.raises(Torn, match=r"trainer_state\.json is missing"):
        read_state(tmp_path, {"optimizer.pt": 5}, 5)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.safetensors", safetensors(b"x")),
        ("adapter_model.safetensors", safetensors(b"x")),
        ("pytorch_model.bin", archive(b"x")),
        ("pytorch_model_fsdp.bin", archive(b"x")),
        ("adapter_model.bin", archive(b"x")),
    ],
)
def test_weights_in_one_file_are_weights(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert check(tmp_path) == {name: len(data)}


def test_a_checkpoint_without_weights_tears(tmp_path: Path) -> None:
    (tmp_path / "optimizer.pt").write_bytes(archive(b"x"))
    with pytest.raises(Torn, match="holds no weights"):
        check(tmp_path, VerifyDepth.LISTING)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({}, "lists no weights"),
        ({"weight_map": {}}, "lists no weights"),
        ({"weight_map": ["x"]}, "lists no weights"),
        ({"weight_map": {"w": "../../etc/passwd"}}, "not in the checkpoint"),
        ({"weight_map": {"w": ""}}, "not in the checkpoint"),
        ({"weight_map": {"w": "a\0b"}}, "not in the checkpoint"),
        ({"weight_map": {"w": "\ud800"}}, "not in the checkpoint"),
        ({"weight_map": {"w": "gone.safetensors"}}, r"gone\.safetensors is missing"),
    ],
)
def test_an_index_that_cannot_be_followed_tears(path: Path, index: object, reason: str) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Torn, match=reason):
        check(path, VerifyDepth.LISTING)


@pytest.mark.parametrize("keep", [0, 5, 20, -1])
def test_safetensors_cut_short_are_seen_by_size(path: Path, keep: int) -> None:
    (path / SHARD).write_bytes((path / SHARD).read_bytes()[:keep])
    check(path, VerifyDepth.LISTING)
    with pytest.raises(Torn, match=SHARD):
        check(path, VerifyDepth.SIZES)


@pytest.mark.parametrize("header", [b"[]", b"{", b'{"w": 3}', b'{"w": {"data_offsets": [0]}}', b"\xff\xff"])
def test_a_damaged_safetensors_header_is_seen(path: Path, header: bytes) -> None:
    (path / SHARD).write_bytes(len(header).to_bytes(8, "little") + header + b"x" * 100)
    with pytest.raises(Torn, match=SHARD):
        check(path, VerifyDepth.SIZES)


def test_a_header_length_beyond_the_file_is_not_read(path: Path) -> None:
    (path / SHARD).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(Torn, match="less than its header"):
        check(path, VerifyDepth.SIZES)


def test_an_empty_optimizer_file_is_seen_by_size(path: Path) -> None:
    (path / "optimizer.pt").write_bytes(b"")
    check(path, VerifyDepth.LISTING)
    with pytest.raises(Torn, match=r"optimizer\.pt is empty"):
        check(path, VerifyDepth.SIZES)
