from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_llmsched.domain.topology import NO_TERMS, NodeTerms
from airflow_llmsched.engines.terms import terms_of
from airflow_llmsched.errors import SpecError


def test_what_sets_a_machine_apart_is_read_from_plain_values() -> None:
    said = {"usd_per_hour": 0, "failures_per_hour": 0.5, "data": ["/b", "/a", "/b"], "slots": 8}
    assert terms_of(said, at="n1") == NodeTerms(usd_per_hour=0.0, failures_per_hour=0.5, data=("/a", "/b"))
    assert terms_of({}, at="n1") == NO_TERMS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("usd_per_hour", -1),
        ("usd_per_hour", True),
        ("failures_per_hour", math.inf),
        ("failures_per_hour", "1"),
        ("data", "/a"),
        ("data", [""]),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"n1.{field}"):
        terms_of({field: value}, at="n1")
