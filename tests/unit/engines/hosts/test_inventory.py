from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.domain.topology import NodeTerms
from airflow_llmsched.engines.hosts.inventory import Host, parse_hosts
from airflow_llmsched.engines.ssh import Machine
from airflow_llmsched.errors import SpecError

PLAIN = {"name": "h1", "address": "10.0.0.1", "slots": 8}


def test_host_needs_a_name_an_address_and_slots_alone() -> None:
    (host,) = parse_hosts([PLAIN], levels=("host",))
    machine = Machine(name="h1", address="10.0.0.1", port=22)
    assert host == Host(name="h1", address="10.0.0.1", machine=machine, num_slots=8, path=("h1",), shape="host")  # type: ignore[arg-type]


def test_host_may_be_logged_in_to_by_another_address_than_others_reach_it_by() -> None:
    more = {
        "cloud": "aws",
        "joins_until_s": 5,
        "login_address": "gpu1.example.org",
        "port": 2222,
        "shape": "h100x8",
        "path": ["east", "r1"],
    }
    (host,) = parse_hosts([{**PLAIN, **more}], levels=("zone", "rack"))
    assert host.address == "10.0.0.1"
    assert host.machine == Machine(name="h1", address="gpu1.example.org", port=2222)
    assert (host.path, host.shape, host.cloud, host.joins_until_s) == (("east", "r1"), "h100x8", "aws", 5.0)


def test_host_may_be_listed_as_off_for_good() -> None:
    on, off = parse_hosts([PLAIN, {**PLAIN, "name": "h2", "off": True}], levels=("host",))
    assert (on.is_off, off.is_off) == (False, True)


def test_host_may_have_terms_of_its_own() -> None:
    terms = {"usd_per_hour": 3, "failures_per_hour": 0.001, "data": ["/data/b", "/data/a"]}
    plain, own = parse_hosts([PLAIN, {**PLAIN, "name": "h2", "address": "10.0.0.2", **terms}], levels=("host",))
    assert plain.terms == NodeTerms()
    assert own.terms == NodeTerms(usd_per_hour=3.0, failures_per_hour=0.001, data=("/data/a", "/data/b"))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"usd_per_hour": -1}, "usd_per_hour"),
        ({"failures_per_hour": "often"}, "failures_per_hour"),
        ({"failures_per_hour": float("nan")}, "failures_per_hour"),
        ({"data": "/data"}, "data"),
        ({"data": [7]}, "data"),
        ({"name": "../etc"}, "name"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"address": "-oProxyCommand=x"}, "address"),
        ({"address": "a b"}, "address"),
        ({"login_address": ""}, "login_address"),
        ({"slots": 0}, "slots"),
        ({"slots": True}, "slots"),
        ({"slots": "8"}, "slots"),
        ({"port": 65536}, "port"),
        ({"path": ["a", "b"]}, "path"),
        ({"path": "h1"}, "path"),
        ({"gpu": 8}, "gpu"),
        ({"cloud": "ibm"}, "cloud"),
        ({"off": "no"}, "off"),
        ({"joins_until_s": "soon"}, "joins_until_s"),
        ({"joins_until_s": float("nan")}, "joins_until_s"),
    ],
)
def test_field_that_is_wrong_is_named_with_its_host(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hosts([PLAIN, {**PLAIN, "name": "h2", **changed}], levels=("host",))
    assert caught.value.path == f"hosts[1].{field}"


def test_two_hosts_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match="another host's name"):
        parse_hosts([PLAIN, PLAIN], levels=("host",))


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        ({}, {}, "address"),
        ({"address": "Gpu1.example.org"}, {"address": "gpu1.example.org"}, "address"),
        ({"login_address": "gate"}, {"address": "10.0.0.2", "login_address": "gate"}, "login_address"),
    ],
)
def test_machine_under_two_names_is_refused(first: dict[str, Any], second: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match="where host h1 is logged in to as well") as caught:
        parse_hosts([{**PLAIN, **first}, {**PLAIN, "name": "h2", **second}], levels=("host",))
    assert caught.value.path == f"hosts[1].{field}"


@pytest.mark.parametrize(
    "second",
    [
        {"login_address": "10.0.0.1", "address": "10.0.0.2", "port": 2222},
        {"off": True},
        {"joins_until_s": 5.0},
    ],
)
def test_gateways_ports_and_addresses_that_a_cloud_gives_again_are_other_machines(second: dict[str, Any]) -> None:
    for listed in ([PLAIN, {**PLAIN, "name": "h2", **second}], [{**PLAIN, "name": "h2", **second}, PLAIN]):
        assert len(parse_hosts(listed, levels=("host",))) == 2


def test_path_is_asked_for_where_there_is_more_than_one_level() -> None:
    with pytest.raises(SpecError, match="zone, rack"):
        parse_hosts([PLAIN], levels=("zone", "rack"))
