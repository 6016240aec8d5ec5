from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmsched.agent import spool
from airflow_llmsched.agent.spool import (
    LineReader,
    LineWriter,
    create_json,
    parse,
    read_json,
    tail,
    whole_lines,
    write_json,
)


def test_reader_returns_only_what_is_new(tmp_path: Path) -> None:
    path = str(tmp_path / "rank-0.jsonl")
    writer, reader = LineWriter(path), LineReader(path)
    writer.append({"a": 1})
    assert reader.read() == [{"a": 1}]
    writer.append({"a": 2})
    writer.append({"a": 3})
    assert reader.read() == [{"a": 2}, {"a": 3}]
    assert reader.read() == []


def test_absent_file_has_no_records(tmp_path: Path) -> None:
    assert LineReader(str(tmp_path / "absent")).read() == []


def test_corrupt_middle_line_is_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"a":1}\n{"a":\n[1]\n\xff\xfe\n{"a":2}\n')
    reader = LineReader(str(path))
    assert reader.read() == [{"a": 1}, {"a": 2}]
    assert reader.num_corrupt == 3


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=5), data=st.data())
def test_torn_last_line_waits_wherever_the_tear_is(
    records: list[dict[str, int]], data: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / "torn"
    whole = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    reader = LineReader(str(path))
    first = reader.read()
    assert first == records[: whole[:cut].count(b"\n")]
    path.write_bytes(whole)
    assert first + reader.read() == records
    assert reader.num_corrupt == 0


def test_line_longer_than_a_read_is_given_up_and_does_not_block_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "MAX_READ_BYTES", 64)
    assert whole_lines(b"x" * 64, limit_bytes=64) == ([b"x" * 64], 64)
    assert whole_lines(b"x" * 63, limit_bytes=64) == ([], 0)


def test_writer_on_a_full_disk_raises_and_later_goes_on(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    writer = LineWriter(str(full))
    with pytest.raises(OSError, match="No space left"):
        writer.append({"a": 1})
    writer.close()
    full.unlink()
    writer.append({"a": 2})
    assert LineReader(str(full)).read() == [{"a": 2}]


def test_line_after_a_torn_one_starts_on_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "file")
    writer = LineWriter(path)
    real_write = os.write
    calls = []

    def short_then_full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return real_write(fd, data[:4])
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real_write(fd, data)

    monkeypatch.setattr(spool.os, "write", short_then_full)
    with pytest.raises(OSError, match="No space"):
        writer.append({"a": 1})
    writer.append({"a": 2})
    reader = LineReader(path)
    assert reader.read() == [{"a": 2}]
    assert reader.num_corrupt == 1


def test_json_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["value.json"]


def test_json_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    assert create_json(path, {"a": 1})
    assert not create_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["value.json"]


def test_trouble_with_a_json_file_names_the_file_that_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "absent folder" / "value.json"
    for write in (write_json, create_json):
        with pytest.raises(OSError, match=r"absent folder/value\.json"):
            write(path, {})


def test_absent_json_is_none_and_bad_json_is_an_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "absent") is None
    (tmp_path / "list").write_text("[1]")
    with pytest.raises(ValueError, match="no JSON object"):
        read_json(tmp_path / "list")
    (tmp_path / "torn").write_text('{"a":')
    with pytest.raises(ValueError, match="Expecting"):
        read_json(tmp_path / "torn")


@pytest.mark.parametrize(("num_lines", "expected"), [(2, "b\nc"), (9, "a\nb\nc"), (0, "")])
def test_tail_returns_the_last_lines(tmp_path: Path, num_lines: int, expected: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nb\nc\n")
    assert tail(path, num_lines) == expected


def test_tail_reads_a_bounded_part_and_survives_odd_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000 + b"\xff\nend\n")
    assert tail(path, 10, max_bytes=8).splitlines()[-1] == "end"
    assert len(tail(path, 10, max_bytes=8)) <= 8
    assert tail(tmp_path / "absent", 3) == ""


def test_json_nested_beyond_reason_is_no_record_and_no_object(tmp_path: Path) -> None:
    deep = b"[" * 99_999
    assert parse(deep) is None
    (tmp_path / "deep.json").write_bytes(deep)
    with pytest.raises(ValueError, match="nested too deep"):
        read_json(tmp_path / "deep.json")


def test_tail_tames_what_would_break_a_database_a_terminal_or_a_message(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"a\0b\tc\n\x1b]0;owned\x07\x1b[31mred\x9b2J\n" + "ü".encode() * 30_000)
    first, second, third = tail(log, 3).split("\n")
    assert first == "a\ufffdb\tc"
    assert second == "\ufffd]0;owned\ufffd\ufffd[31mred\ufffd2J"
    assert third == "ü" * 399 + "…"
