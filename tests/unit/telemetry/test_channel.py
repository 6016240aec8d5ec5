from __future__ import annotations

import itertools
import json
import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmsched import codec
from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import CouldNotLookError, StoreError
from airflow_llmsched.telemetry import channel as channel_module
from airflow_llmsched.telemetry.channel import DirectoryChannel, open_witness

START = ChannelCursor(positions={})


def line(node: str, seq: int) -> bytes:
    return codec.to_json(NodeReport(node=node, seq=seq, at_s=float(seq))) + b"\n"


def write(root: Path, node: str, data: bytes) -> None:
    (root / "up").mkdir(parents=True, exist_ok=True)
    with (root / "up" / f"{node}.jsonl").open("ab") as file:
        file.write(data)


def seqs(reports: object) -> list[tuple[str, int]]:
    return [(report.node, report.seq) for report in reports]  # type: ignore[attr-defined]


def test_nothing_is_there_before_an_agent_made_the_channel(tmp_path: Path) -> None:
    assert DirectoryChannel(str(tmp_path / "absent")).read(START) == ([], START)


def test_reports_come_once_in_order_per_node(tmp_path: Path) -> None:
    channel = DirectoryChannel(str(tmp_path))
    write(tmp_path, "n0", line("n0", 1) + line("n0", 2))
    write(tmp_path, "n1", line("n1", 1))
    reports, cursor = channel.read(START)
    assert seqs(reports) == [("n0", 1), ("n0", 2), ("n1", 1)]
    write(tmp_path, "n1", line("n1", 2))
    reports, cursor = channel.read(cursor)
    assert seqs(reports) == [("n1", 2)]
    assert channel.read(cursor) == ([], cursor)


def test_cursor_is_json_safe_and_valid_in_another_process(tmp_path: Path) -> None:
    write(tmp_path, "n0", line("n0", 1))
    _, cursor = DirectoryChannel(str(tmp_path)).read(START)
    write(tmp_path, "n0", line("n0", 2))
    reports, _ = DirectoryChannel(str(tmp_path)).read(codec.from_json(ChannelCursor, codec.to_json(cursor)))
    assert seqs(reports) == [("n0", 2)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=4))
def test_every_report_comes_exactly_once_however_the_file_grows(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("channel")
    whole = b"".join(line("n0", seq) for seq in range(1, 5))
    bounds = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    channel, cursor, seen = DirectoryChannel(str(root)), START, []
    for start, end in itertools.pairwise(bounds):
        write(root, "n0", whole[start:end])
        reports, cursor = channel.read(cursor)
        seen += seqs(reports)
    assert seen == [("n0", seq) for seq in range(1, 5)]
    assert channel.num_corrupt == 0


def test_corrupt_middle_line_is_counted_warned_of_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write(tmp_path, "n0", line("n0", 1) + b'{"node":"n0","seq":\n' + b"\x00\xff\n" + line("n0", 2))
    channel = DirectoryChannel(str(tmp_path))
    reports, _ = channel.read(START)
    assert seqs(reports) == [("n0", 1), ("n0", 2)]
    assert channel.num_corrupt == 2
    assert "n0.jsonl" in caplog.text


def test_report_in_another_nodes_file_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path, "n0", line("n1", 1) + line("n0", 1))
    channel = DirectoryChannel(str(tmp_path))
    assert seqs(channel.read(START)[0]) == [("n0", 1)]
    assert channel.num_corrupt == 1


def test_long_absence_is_caught_up_with_in_bounded_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_MAX_READ_BYTES", 200)
    write(tmp_path, "n0", b"".join(line("n0", seq) for seq in range(1, 8)))
    channel, cursor, seen = DirectoryChannel(str(tmp_path)), START, []
    for _ in range(7):
        reports, cursor = channel.read(cursor)
        assert len(reports) <= 3
        seen += seqs(reports)
    assert seen == [("n0", seq) for seq in range(1, 8)]


def test_unreadable_channel_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "up" / "n0.jsonl").mkdir(parents=True)
    with pytest.raises(CouldNotLookError, match="try again"):
        DirectoryChannel(str(tmp_path)).read(START)


def test_orders_add_up_and_keep_each_other(tmp_path: Path) -> None:
    channel = DirectoryChannel(str(tmp_path))
    channel.order_checkpoint()
    channel.order_stop(reason="replan $(now)")
    DirectoryChannel(str(tmp_path)).order_checkpoint()
    DirectoryChannel(str(tmp_path)).order_interval(interval_s=90.0)
    assert read_json(tmp_path / "down" / "orders.json") == {
        "v": 1,
        "checkpoint_seq": 2,
        "stop": "replan $(now)",
        "checkpoint_interval_s": 90.0,
    }


def test_renewal_is_overwritten_not_appended(tmp_path: Path) -> None:
    channel = DirectoryChannel(str(tmp_path))
    channel.renew(until_s=10.0)
    channel.renew(until_s=20.0)
    assert json.loads((tmp_path / "down" / "lease.json").read_text()) == {"v": 1, "until_s": 20.0}
    assert [path.name for path in (tmp_path / "down").iterdir()] == ["lease.json"]


def test_order_that_cannot_be_written_or_read_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "down").write_text("a file is in the way")
    with pytest.raises(StoreError, match="down"):
        DirectoryChannel(str(tmp_path)).renew(until_s=1.0)
    (tmp_path / "down").unlink()
    (tmp_path / "down").mkdir()
    (tmp_path / "down" / "orders.json").write_text("{")
    with pytest.raises(StoreError, match="orders"):
        DirectoryChannel(str(tmp_path)).order_checkpoint()


def test_lease_is_what_control_said_last(tmp_path: Path) -> None:
    channel = DirectoryChannel(str(tmp_path))
    assert channel.lease_until_s() is None
    channel.renew(until_s=7.0)
    channel.renew(until_s=9.5)
    assert channel.lease_until_s() == 9.5


@pytest.mark.parametrize("data", ["", "[]", "{}", '{"until_s": "soon"}', '{"until_s": null}'])
def test_lease_that_cannot_be_understood_is_not_absent(tmp_path: Path, data: str) -> None:
    (tmp_path / "down").mkdir()
    (tmp_path / "down" / "lease.json").write_text(data)
    with pytest.raises(CouldNotLookError, match=r"lease\.json"):
        DirectoryChannel(str(tmp_path)).lease_until_s()


def test_last_sign_is_the_latest_of_any_node_by_its_clock_or_the_files(tmp_path: Path) -> None:
    channel = DirectoryChannel(str(tmp_path))
    assert channel.last_sign_s() is None
    write(tmp_path, "n0", line("n0", 5))
    write(tmp_path, "n1", line("n1", 900) + b'{"torn')
    for name, at_s in (("n0", 700.0), ("n1", 600.0)):
        os.utime(tmp_path / "up" / f"{name}.jsonl", (at_s, at_s))
    assert channel.last_sign_s() == 900.0
    os.utime(tmp_path / "up" / "n0.jsonl", (1200.0, 1200.0))
    assert channel.last_sign_s() == 1200.0


def test_last_sign_of_a_long_channel_is_read_from_its_end(tmp_path: Path) -> None:
    write(tmp_path, "n0", b"".join(line("n0", seq) for seq in range(1, 5_000)))
    os.utime(tmp_path / "up" / "n0.jsonl", (1.0, 1.0))
    assert DirectoryChannel(str(tmp_path)).last_sign_s() == 4_999.0


def test_channel_that_cannot_be_read_gives_no_sign_and_no_silence(tmp_path: Path) -> None:
    (tmp_path / "up").write_text("no folder")
    with pytest.raises(CouldNotLookError):
        DirectoryChannel(str(tmp_path)).last_sign_s()


def test_latest_is_the_newest_whole_report_of_each_node_and_comes_once(tmp_path: Path) -> None:
    channel = DirectoryChannel(str(tmp_path))
    assert channel.latest(START) == ([], START)
    write(tmp_path, "n0", b"".join(line("n0", seq) for seq in range(1, 4)) + line("n0", 4)[:-5])
    write(tmp_path, "n1", line("n1", 1))
    reports, cursor = channel.latest(START)
    assert seqs(reports) == [("n0", 3), ("n1", 1)]
    assert channel.latest(cursor) == ([], cursor)
    write(tmp_path, "n0", line("n0", 4)[-5:])
    reports, cursor = channel.latest(cursor)
    assert seqs(reports) == [("n0", 4)]
    assert cursor.positions["n0"] == (tmp_path / "up" / "n0.jsonl").stat().st_size


@pytest.mark.parametrize("tail_bytes", [1, 30, 64, 4096])
def test_latest_reaches_the_end_of_a_long_file_whatever_it_reads_first(
    tail_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "_TAIL_BYTES", tail_bytes)
    write(tmp_path, "n0", b"".join(line("n0", seq) for seq in range(1, 200)))
    channel = DirectoryChannel(str(tmp_path))
    reports, cursor = channel.latest(START)
    assert seqs(reports) == [("n0", 199)]
    assert channel.num_corrupt == 0
    assert channel.read(cursor) == ([], cursor)


def test_latest_skips_what_is_corrupt_and_takes_the_report_before_it(tmp_path: Path) -> None:
    write(tmp_path, "n0", line("n0", 1) + b"\n{}\n\x00\n")
    channel = DirectoryChannel(str(tmp_path))
    reports, cursor = channel.latest(START)
    assert seqs(reports) == [("n0", 1)]
    assert channel.num_corrupt == 2
    assert channel.latest(cursor) == ([], cursor)


def test_latest_gives_a_line_up_that_can_never_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "_TAIL_BYTES", 8)
    monkeypatch.setattr(channel_module, "_MAX_READ_BYTES", 512)
    write(tmp_path, "n0", b"x" * 5000)
    channel = DirectoryChannel(str(tmp_path))
    reports, cursor = channel.latest(START)
    assert reports == []
    write(tmp_path, "n0", b"\n" + line("n0", 1))
    assert seqs(channel.latest(cursor)[0]) == [("n0", 1)]


def test_latest_of_an_unreadable_channel_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "up" / "n0.jsonl").mkdir(parents=True)
    with pytest.raises(CouldNotLookError, match="try again"):
        DirectoryChannel(str(tmp_path)).latest(START)


def test_channel_in_a_bucket_is_not_taken_for_a_silent_folder() -> None:
    with pytest.raises(CouldNotLookError, match="in a bucket"):
        open_witness("s3://bucket/runs/x/channel/y")


def test_recent_reports_are_whole_and_cost_the_same_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = DirectoryChannel(str(tmp_path))
    assert channel.recent() == []
    write(tmp_path, "n0", b"".join(line("n0", seq) for seq in range(1, 200)) + b'{"torn')
    write(tmp_path, "n1", line("n1", 1))
    assert len(channel.recent()) == 200
    for num_bytes in range(1000, 1100):
        monkeypatch.setattr(channel_module, "_RECENT_BYTES", num_bytes)
        found = channel.recent()
        assert seqs(found)[-2:] == [("n0", 199), ("n1", 1)]
        assert 5 < len(found) < 40
    assert channel.num_corrupt == 0


def test_recent_of_an_unreadable_channel_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "up" / "n0.jsonl").mkdir(parents=True)
    with pytest.raises(CouldNotLookError):
        DirectoryChannel(str(tmp_path)).recent()
