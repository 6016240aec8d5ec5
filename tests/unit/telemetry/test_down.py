from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import StoreError
from airflow_llmsched.telemetry.down import extension_name, last_lease_end_s

TIMES = st.floats(min_value=0.0, max_value=4e9)


@given(first=TIMES, second=TIMES)
def test_notes_of_extensions_sort_by_time_and_differ_by_the_millisecond(first: float, second: float) -> None:
    earlier, later = sorted((first, second))
    assert extension_name(earlier) <= extension_name(later)
    if later - earlier >= 0.002:
        assert extension_name(earlier) != extension_name(later)


@given(at_s=TIMES, lease_s=st.floats(0.1, 1e4), ends=st.lists(TIMES, max_size=5))
def test_no_lease_ends_after_the_last(at_s: float, lease_s: float, ends: list[float]) -> None:
    last_s = last_lease_end_s({"at_s": at_s}, [{"until_s": end_s} for end_s in ends], lease_s=lease_s)
    assert last_s == max([at_s + lease_s, *ends])


@pytest.mark.parametrize(
    ("revoked", "notes"), [(None, []), ({}, []), ({"at_s": None}, []), ({"at_s": 1.0}, [{"until_s": "soon"}])]
)
def test_damaged_records_never_shorten_the_wait(revoked: Any, notes: Any) -> None:
    with pytest.raises(StoreError, match="damaged"):
        last_lease_end_s(revoked, notes, lease_s=30.0)
