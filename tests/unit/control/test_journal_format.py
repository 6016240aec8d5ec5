from __future__ import annotations

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.journal_format import (
    JournalError,
    decode_bundle,
    decode_record,
    encode_bundle,
    encode_record,
)
from tests.support.sim_house import plan_of

RECORDS = ((ev.Woke(at_s=1.0), ev.PlanChosen(at_s=2.0, plan=plan_of(("n0", 2)))), (), (ev.Woke(at_s=3.0),))


def test_record_comes_back_as_it_was() -> None:
    assert decode_record(encode_record(RECORDS[0], number=7), number=7, where="x") == RECORDS[0]


def test_bundle_comes_back_as_it_was() -> None:
    assert decode_bundle(encode_bundle(RECORDS, first=5), first=5, last=7, where="x") == RECORDS


def test_bundle_holds_each_record_as_it_stood_alone() -> None:
    bundle = encode_bundle(RECORDS, first=5)
    for index, record in enumerate(RECORDS):
        assert encode_record(record, number=5 + index) in bundle


@pytest.mark.parametrize(("first", "last"), [(4, 6), (5, 8), (5, 6)])
def test_bundle_of_other_numbers_is_refused(first: int, last: int) -> None:
    with pytest.raises(JournalError, match=f"x does not hold the records {first} to {last}"):
        decode_bundle(encode_bundle(RECORDS, first=5), first=first, last=last, where="x")


def test_record_of_another_number_is_refused() -> None:
    with pytest.raises(JournalError, match="x says it is record 7"):
        decode_record(encode_record(RECORDS[0], number=7), number=8, where="x")
