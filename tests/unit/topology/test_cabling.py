from __future__ import annotations

import pytest

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.cabling import Cable, Cabling, Device, lanes_rate
from airflow_llmsched.topology.reading import Oddities


def device(guid: str, name: str, *, is_switch: bool = False, system: str = "") -> Device:
    return Device(guid=guid, name=name, is_switch=is_switch, system=system or guid)


def cabling(*devices: Device) -> Cabling:
    made = Cabling("fabric", Oddities())
    for each in devices:
        made.add_device(each, "fabric: line 1")
    return made


@pytest.mark.parametrize(
    ("width", "speed", "rate"),
    [
        ("4x", "HDR", 25e9),
        ("4x", "50", 25e9),
        ("4x", "NDR", 50e9),
        ("2x", "NDR", 25e9),
        ("1x", "200", 25e9),
        ("4x", "EDR", 12.5e9),
        ("4x", "25", 12.5e9),
        ("4x", "QDR", 4e9),
        ("4x", "14", 6.82e9),
        ("4x", "FDR10", 5e9),
        ("4x", "ABC", None),
        ("x", "HDR", None),
    ],
)
def test_rates_are_those_of_data_by_lanes_and_speed(width: str, speed: str, rate: float | None) -> None:
    assert lanes_rate(width, speed) == rate


def test_a_cable_is_one_whichever_end_tells_of_it() -> None:
    made = cabling(device("a", "s", is_switch=True), device("b", "n1 mlx5_0"))
    made.add_cable(("a", "1"), ("b", "2"), None, "fabric: line 2")
    made.add_cable(("b", "2"), ("a", "1"), 25e9, "fabric: line 3")
    made.add_cable(("a", "1"), ("b", "2"), 12.5e9, "fabric: line 4")
    made.add_cable(("a", "7"), ("gone", "1"), 1.0, "fabric: line 5")
    assert list(made.cables()) == [Cable(ends=("a", "b"), bytes_per_s=12.5e9)]
    assert made.odd.counted() == {"cable whose ends tell different rates: the lower one counts": 1}


def test_a_port_with_two_cables_is_refused_with_both_lines() -> None:
    made = cabling()
    made.add_cable(("a", "1"), ("b", "1"), None, "fabric: line 2")
    with pytest.raises(
        DataError, match=r"line 3: port b\[1\] leads to c\[1\], and to a\[1\] by line 2\. Was a cable moved"
    ):
        made.add_cable(("c", "1"), ("b", "1"), None, "fabric: line 3")


@pytest.mark.parametrize(
    ("description", "host"),
    [
        ("node01 mlx5_0", "node01"),
        ("node01.site.edu HCA-2", "node01.site.edu"),
        ("node01 hfi1_0", "node01"),
        ("node01 ibp65s0", "node01"),
        ("node01", "node01"),
        ("MT4123 ConnectX6   Mellanox Technologies", "box"),
        ("mlx5_0", "box"),
        ("localhost mlx5_0", "box"),
        ("", "box"),
    ],
)
def test_a_host_is_what_stands_before_its_card(description: str, host: str) -> None:
    assert cabling(device("a", description, system="box")).hosts() == {"a": host}


def test_ports_through_which_switches_add_up_are_no_hosts() -> None:
    assert cabling(device("a", "Mellanox Technologies Aggregation Node")).hosts() == {}


def test_two_cards_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="cards a and b are both called 'n1 mlx5_0'"):
        cabling(device("a", "n1 mlx5_0"), device("b", "n1 mlx5_0")).hosts()


def test_switches_of_one_name_are_told_apart_by_their_guids() -> None:
    made = cabling(
        *(device(guid, name, is_switch=True) for guid, name in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "")))
    )
    assert made.switch_names() == {"a": "a", "b": "b", "c": "y", "d": "d"}


def test_a_device_that_was_renamed_meanwhile_has_one_name_whatever_came_first() -> None:
    one = cabling(device("a", "x"), device("a", "y"), device("a", ""))
    other = cabling(device("a", ""), device("a", "y"), device("a", "x"))
    assert one.devices["a"].name == other.devices["a"].name == "y"
    assert one.odd.counted() == {"device that was renamed during discovery": 1}
    with pytest.raises(DataError, match="a is a switch and a card"):
        one.add_device(device("a", "x", is_switch=True), "fabric: line 9")
