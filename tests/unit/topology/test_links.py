from __future__ import annotations

import pytest

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NetworkFacts, NetworkLevel
from airflow_llmsched.errors import SpecError
from airflow_llmsched.topology.links import facts_of, links_of


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


def test_what_a_network_has_as_a_whole_is_read_from_plain_values() -> None:
    facts = facts_of({"rails": 8, "transport": "dpu", "traffic_class": 0, "service_level": 15})
    assert facts == NetworkFacts(num_rails=8, transport=Transport.DPU, traffic_class=0, service_level=15)
    assert facts_of(facts) is facts
    assert facts_of({}) == AS_SHAPES_SAY


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ([], r"fabric = \[\]: must be a block"),
        ({"rail": 8}, "fabric.rail: is not known; known: rails, transport"),
        ({"rails": 0}, "fabric.rails = 0: must be a whole number from 1 to 64"),
        ({"rails": True}, "fabric.rails"),
        ({"transport": "rdma"}, "fabric.transport = 'rdma': must be one of host, card, dpu"),
        ({"transport": ["dpu"]}, "fabric.transport"),
        ({"traffic_class": 256}, "fabric.traffic_class = 256: must be a whole number from 0 to 255"),
        ({"service_level": 1.0}, "fabric.service_level"),
    ],
)
def test_mistakes_about_a_network_are_told_with_their_field(plain: object, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        facts_of(plain)
