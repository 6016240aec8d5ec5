from __future__ import annotations

from airflow_llmsched.codec import to_json
from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import NodeReport, StepRecord
from airflow_llmsched.telemetry import channel
from airflow_llmsched.telemetry.channel import DirectoryChannel


def _report(seq):
    step = StepRecord(step=seq, start_s=float(seq), end_s=seq + 1.0, loss=1.0, num_tokens=8)
    return NodeReport(node=NodeId("n0"), seq=seq, at_s=float(seq), steps=(step,))


def test_reads_on_past_the_bound_of_one_read(tmp_path, monkeypatch):
    reports = [_report(seq) for seq in range(1, 51)]
    lines = [to_json(report) + b"\n" for report in reports]
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "n0.jsonl").write_bytes(b"".join(lines))
    monkeypatch.setattr(channel, "_MAX_READ_BYTES", 3 * max(map(len, lines)))
    assert read_all(DirectoryChannel(str(tmp_path))) == tuple(reports)


def test_an_attempt_that_never_spoke_said_nothing(tmp_path):
    assert read_all(DirectoryChannel(str(tmp_path))) == ()
