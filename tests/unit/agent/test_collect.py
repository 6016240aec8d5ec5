from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent import collect, proc, wire
from airflow_llmsched.agent.collect import Collector
from airflow_llmsched.agent.spool import LineWriter
from airflow_llmsched.domain.progress import NodeReport


def write(spool: Path, rank: int, *records: dict[str, object]) -> None:
    writer = LineWriter(str(spool / wire.rank_spool_name(rank)))
    for record in records:
        writer.append(record)
    writer.close()


def started(rank: int, *, at_s: float = 1.0) -> dict[str, object]:
    return wire.start_record(rank=rank, local_rank=0, pid=100 + rank, start_ticks=5, wrapper="1:2:b", at_s=at_s)


def step(number: int) -> dict[str, object]:
    return wire.step_record(step=number, start_s=number, end_s=number + 0.5, loss=2.0, num_tokens=64)


def test_report_holds_what_no_report_held_before(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    write(tmp_path, 0, started(0), step(1), wire.mark_record(step=1, path="/c", at_s=2.0))
    write(tmp_path, 1, started(1), wire.span_record(span="save", start_s=3.0, end_s=4.0, step=1))
    collector.read()
    first = collector.report(now_s=5.0)
    assert (first["node"], first["seq"], first["at_s"]) == ("n0", 1, 5.0)
    assert first["steps"] == [{"step": 1, "start_s": 1, "end_s": 1.5, "loss": 2.0, "num_tokens": 64}]
    assert first["spans"] == [{"kind": "save", "rank": 1, "start_s": 3.0, "end_s": 4.0, "step": 1}]
    assert first["marks"] == [{"step": 1, "path": "/c", "at_s": 2.0}]
    assert first["ranks"] == [
        {"rank": 0, "step": 1, "heartbeat_s": 2.0, "pid": 100, "speaks": True},
        {"rank": 1, "step": None, "heartbeat_s": 4.0, "pid": 101, "speaks": True},
    ]
    collector.read()
    second = collector.report(now_s=6.0)
    assert (second["seq"], second["steps"], second["spans"], second["marks"]) == (2, [], [], [])
    assert second["ranks"] == first["ranks"]


def test_rank_that_stands_ready_is_known_by_its_wrapper_and_reported_once_it_starts(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    write(tmp_path, 0, wire.armed_record(rank=0, wrapper="7:8:b", at_s=1.0))
    collector.read()
    assert (collector.ranks[0].wrapper, collector.ranks[0].started_at_s) == ("7:8:b", None)
    assert collector.report(now_s=2.0)["ranks"] == []
    write(tmp_path, 0, started(0, at_s=3.0))
    collector.read()
    (progress,) = collector.report(now_s=4.0)["ranks"]
    assert (progress["pid"], progress["heartbeat_s"], progress["speaks"]) == (100, 3.0, False)


def test_only_rank_0_tells_the_gangs_steps(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n1", num_trainers=8)
    write(tmp_path, 2, started(2), step(1), step(2))
    collector.read()
    report = collector.report(now_s=9.0)
    assert report["steps"] == []
    assert report["ranks"][0]["step"] == 2


def test_end_and_start_are_kept_per_rank(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    end = wire.end_record(rank=0, exit_code=3, signal=None, at_s=7.0)
    write(tmp_path, 0, started(0, at_s=1.5), wire.beat_record(at_s=6.0), end)
    collector.read()
    view = collector.ranks[0]
    assert (view.started_at_s, view.heartbeat_s, view.end) == (1.5, 6.0, end)


@pytest.mark.parametrize(
    "said",
    [
        step(1),
        wire.span_record(span="init", start_s=1.0, end_s=2.0),
        wire.mark_record(step=1, path="/c", at_s=2.0),
        wire.beat_record(at_s=2.0),
    ],
)
def test_a_rank_speaks_from_the_first_word_of_its_own_program(tmp_path: Path, said: dict[str, object]) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    write(tmp_path, 0, started(0), {"kind": "of a later version"})
    collector.read()
    assert collector.report(now_s=5.0)["ranks"][0]["speaks"] is False
    write(tmp_path, 0, said)
    collector.read()
    write(tmp_path, 0, wire.end_record(rank=0, exit_code=0, signal=None, at_s=3.0))
    collector.read()
    assert collector.report(now_s=6.0)["ranks"][0]["speaks"] is True


def test_other_files_and_foreign_lines_are_left_alone(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    (tmp_path / "orders.json").write_text("{}")
    (tmp_path / "rank-x.jsonl").write_text('{"kind":"step"}\n')
    (tmp_path / "rank-0.jsonl").write_text('{"kind":"step"}\n{"other":1}\nnot json\n{"kind":"beat","at_s":4.0}\n')
    collector.read()
    assert list(collector.ranks) == [0]
    assert collector.ranks[0].heartbeat_s == 4.0


ODD = (None, "x", "", [], {}, 1.5, 10**30, True, float("inf"))


@pytest.mark.parametrize("kind", ["start", "end", "step", "span", "mark", "beat"])
def test_whatever_a_field_holds_the_report_can_be_read_and_the_next_line_counts(tmp_path: Path, kind: str) -> None:
    whole: dict[str, dict[str, object]] = {
        "start": started(0),
        "end": wire.end_record(rank=0, exit_code=0, signal=None, at_s=7.0),
        "step": step(1),
        "span": wire.span_record(span="save", start_s=3.0, end_s=4.0, step=1),
        "mark": wire.mark_record(step=1, path="/c", at_s=2.0),
        "beat": wire.beat_record(at_s=2.0),
    }
    for index, name in enumerate(whole[kind]):
        for number, odd in enumerate(ODD):
            spool = tmp_path / f"{index}-{number}"
            spool.mkdir()
            write(spool, 0, {**whole[kind], name: odd}, step(2))
            collector = Collector(spool, node="n0", num_trainers=8)
            collector.read()
            report = codec.from_plain(NodeReport, collector.report(now_s=9.0))
            assert report.steps[-1].step == 2
            view = collector.ranks[0]
            assert not view.wrapper or proc.Process.parse(view.wrapper)


def test_step_without_its_times_changes_nothing(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    write(tmp_path, 0, step(1), {"kind": "step", "step": 900})
    collector.read()
    assert collector.ranks[0].step == 1


def test_report_after_intervals_without_one_says_how_many_it_covers(tmp_path: Path) -> None:
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    write(tmp_path, 0, started(0), step(1))
    collector.read()
    collector.defer()
    collector.defer()
    report = collector.report(now_s=1.0)
    assert (report["num_deferred"], report["num_dropped"], len(report["steps"])) == (2, 0, 1)
    assert collector.report(now_s=2.0)["num_deferred"] == 0


def test_what_waits_is_bounded_and_the_oldest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MAX_WAITING", 3)
    collector = Collector(tmp_path, node="n0", num_trainers=8)
    write(tmp_path, 0, started(0), *(step(number) for number in range(1, 6)))
    collector.read()
    collector.defer()
    report = collector.report(now_s=1.0)
    assert [each["step"] for each in report["steps"]] == [3, 4, 5]
    assert report["num_dropped"] == 2
    assert report["ranks"][0]["step"] == 5


def test_reports_are_about_trainers(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = LineWriter(str(tmp_path / wire.rank_spool_name(number)))
        start = wire.start_record(rank=number, local_rank=0, pid=10, start_ticks=1, wrapper="1:2:b", at_s=1.0)
        for record in (
            start,
            wire.mark_record(step=3, path="/c", at_s=2.0),
            wire.span_record(span="save", start_s=1, end_s=2),
        ):
            writer.append(record)
        writer.close()
    collector = Collector(tmp_path, node="n0", num_trainers=2)
    collector.read()
    report = collector.report(now_s=3.0)
    assert [each["rank"] for each in report["ranks"]] == [1]
    assert (len(report["marks"]), len(report["spans"])) == (1, 1)
    assert collector.ranks[2].started_at_s == 1.0
    assert not collector.ranks[2].speaks
