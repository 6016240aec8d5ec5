from __future__ import annotations

import pytest

from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.errors import SpecError
from airflow_llmsched.topology.links import links_of


def test_links_are_read_from_plain_values() -> None:
    links = links_of(
        [{"level": "rack", "bandwidth_bytes_per_s": 5e10, "measured": True}, {"bandwidth_bytes_per_s": 10}]
    )
    assert links == (
        NetworkLevel(level="rack", bandwidth_bytes_per_s=5e10, is_measured=True),
        NetworkLevel(level=None, bandwidth_bytes_per_s=10.0),
    )
    assert links_of(links) == links
    assert links_of([]) == ()


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ({}, "network = {}: must be a list"),
        ([3], r"network\[0\] = 3: must be a block"),
        ([{"rate": 1}], r"network\[0\].rate: is not known"),
        ([{"level": 3, "bandwidth_bytes_per_s": 1}], r"network\[0\].level = 3"),
        ([{}], r"network\[0\].bandwidth_bytes_per_s: must be a number above 0"),
        ([{"bandwidth_bytes_per_s": True}], "must be a number"),
        ([{"bandwidth_bytes_per_s": float("nan")}], "must be a number"),
        ([{"bandwidth_bytes_per_s": 1, "measured": "no"}], r"network\[0\].measured = 'no': must be true or false"),
        ([{"bandwidth_bytes_per_s": 1}, {"bandwidth_bytes_per_s": 2}], r"network\[1\].level: is told twice"),
    ],
)
def test_mistakes_are_told_with_their_field(plain: object, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        links_of(plain)
