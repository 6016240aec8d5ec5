from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.domain.progress import AgentSpan, AgentSpanKind, NodeReport
from tests.support.history import mark, report, steps


def test_a_report_keeps_every_record_through_its_wire_form():
    span = AgentSpan(kind=AgentSpanKind.SAVE, rank=3, start_s=1.0, end_s=2.5, step=20)
    sent = report(steps=steps(1, 3, start=0.0), spans=[span], marks=[mark(2, 9.0)])
    assert codec.from_json(NodeReport, codec.to_json(sent)) == sent


def test_a_report_without_news_is_still_a_sign_of_life():
    quiet = report(seq=5, at=7.0)
    assert (quiet.seq, quiet.ranks, quiet.steps, quiet.spans, quiet.marks) == (5, (), (), (), ())
