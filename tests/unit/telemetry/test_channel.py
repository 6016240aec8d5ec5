from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmsched import codec
from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import CouldNotLookError, StoreError
from airflow_llmsched.telemetry import channel as channel_module
from airflow_llmsched.telemetry.channel import DirectoryChannel

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
