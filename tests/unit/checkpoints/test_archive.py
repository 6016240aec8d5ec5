from __future__ import annotations

import io
from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.archive import check_archive, check_items
from airflow_llmsched.checkpoints.dcp_metadata import StoredItem
from airflow_llmsched.checkpoints.scan import Torn
from tests.support.checkpoint_files import archive, safetensors


def item(offset_bytes: int, num_bytes: int, *, tensor: bool = True, transformed: bool = False) -> StoredItem:
    return StoredItem(
        path="shard", offset_bytes=offset_bytes, num_bytes=num_bytes, tensor=tensor, transformed=transformed
    )


def test_a_whole_archive_passes_and_a_flipped_byte_is_found_in_the_content(tmp_path: Path) -> None:
    data = bytearray(archive(b"tensor" * 1000))
    (tmp_path / "optimizer.pt").write_bytes(data)
    check_archive(tmp_path, "optimizer.pt", content=True)
    data[len(data) // 2] ^= 1
    (tmp_path / "optimizer.pt").write_bytes(data)
    check_archive(tmp_path, "optimizer.pt", content=False)
    with pytest.raises(Torn, match=r"optimizer\.pt holds damaged bytes: archive/data/0"):
        check_archive(tmp_path, "optimizer.pt", content=True)


def test_an_archive_cut_short_is_found_without_reading_it_all(tmp_path: Path) -> None:
    data = archive(b"tensor" * 1000)
    for keep in (10, len(data) // 2, len(data) - 1):
        (tmp_path / "x.pt").write_bytes(data[:keep])
        with pytest.raises(Torn, match=r"x\.pt is no whole archive"):
            check_archive(tmp_path, "x.pt", content=False)


def test_the_old_format_of_torch_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "old.bin").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    check_archive(tmp_path, "old.bin", content=True)


def test_a_missing_archive_is_torn(tmp_path: Path) -> None:
    with pytest.raises(Torn, match=r"gone\.pt is missing"):
        check_archive(tmp_path, "gone.pt", content=True)


def test_every_item_of_a_shard_is_checked_where_it_lies(tmp_path: Path) -> None:
    parts = [archive(bytes([number]) * 500) for number in range(4)]
    ends = [sum(map(len, parts[: number + 1])) for number in range(4)]
    items = [item(end - len(part), len(part)) for end, part in zip(ends, parts, strict=True)]
    whole = b"".join(parts)
    (tmp_path / "shard").write_bytes(whole)
    check_items(tmp_path, items)
    for wrong in range(4):
        data = bytearray(whole)
        data[ends[wrong] - len(parts[wrong]) // 2 - 100] ^= 1
        (tmp_path / "shard").write_bytes(data)
        with pytest.raises(Torn, match=f"shard at byte {items[wrong].offset_bytes} "):
            check_items(tmp_path, items)


def test_a_tensor_whose_first_bytes_are_lost_is_damaged_and_an_object_in_a_form_of_its_own_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "shard").write_bytes(b"\0" * 100)
    with pytest.raises(Torn, match="neither an archive"):
        check_items(tmp_path, [item(0, 100)])
    check_items(tmp_path, [item(0, 100, tensor=False), item(0, 100, transformed=True), item(0, 0)])


def test_an_item_too_short_for_an_archive_is_judged_without_its_neighbour(tmp_path: Path) -> None:
    neighbour = archive(b"x" * 100)
    for num_bytes in (4, 10, 21):
        (tmp_path / "shard").write_bytes(neighbour + (b"PK\x03\x04" + b"\0" * 30)[:num_bytes])
        with pytest.raises(Torn, match=f"shard at byte {len(neighbour)} is no whole archive"):
            check_items(tmp_path, [item(0, len(neighbour)), item(len(neighbour), num_bytes)])


def test_safetensors_items_pass(tmp_path: Path) -> None:
    data = safetensors(b"x" * 64)
    (tmp_path / "shard").write_bytes(b"junk" + data)
    check_items(tmp_path, [item(4, len(data))])


@pytest.mark.torch
def test_what_torch_saves_is_a_checked_archive(tmp_path: Path) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save({"w": torch.arange(5000)}, buffer)
    data = bytearray(buffer.getvalue())
    (tmp_path / "optimizer.pt").write_bytes(data)
    check_archive(tmp_path, "optimizer.pt", content=True)
    data[len(data) // 2] ^= 1
    (tmp_path / "optimizer.pt").write_bytes(data)
    with pytest.raises(Torn, match="does not match its checksum"):
        check_archive(tmp_path, "optimizer.pt", content=True)
