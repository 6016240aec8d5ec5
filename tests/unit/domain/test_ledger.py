from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.domain.ledger import Bucket, Ledger, Span


def ledger(end_s: float) -> Ledger:
    span = Span(bucket=Bucket.STAGE, start_s=100.0, end_s=end_s)
    return Ledger(start_s=100.0, end_s=end_s, spans=(span,), totals_s={Bucket.STAGE: end_s - 100.0}, ettr_ratio=0.0)


def test_shares_are_of_the_wall_time():
    built = ledger(104.0)
    assert built.wall_s == 4.0
    assert built.ratio(Bucket.STAGE) == 1.0
    assert built.ratio(Bucket.LOST) == 0.0


def test_an_empty_run_has_no_shares():
    assert ledger(100.0).ratio(Bucket.STAGE) == 0.0


def test_a_ledger_survives_json():
    assert codec.from_json(Ledger, codec.to_json(ledger(104.0))) == ledger(104.0)
