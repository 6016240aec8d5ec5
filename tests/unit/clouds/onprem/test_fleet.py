from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.clouds.onprem import fleet as fleets
from airflow_llmsched.clouds.onprem.fleet import Extended, Fleet, Freed, Reservation, Reserved
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import DataError

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
ONE = Reservation(
    key=LeaseKey(run=RUN, generation=1, rental=1),
    pool=Pool(cloud="onprem", region="hall", zone="hall-1", shape="dgx", capacity_type=CapacityType.ON_DEMAND),
    nodes=(NodeId("n1"), NodeId("n2")),
    until_s=1000.0,
    origin=RunOrigin(deployment_id="d", run=RUN, dag_id="ä", run_id="manual__1"),
)
TWO = replace(ONE, key=replace(ONE.key, rental=2), nodes=(NodeId("n3"),), origin=None)


def after(*changes: fleets.AnyChange) -> Fleet:
    fleet = Fleet()
    for change in changes:
        fleet = fleets.apply(fleet, change)
    return fleet


def test_a_fleet_is_what_was_reserved_and_not_freed() -> None:
    fleet = after(Reserved(reservation=ONE), Reserved(reservation=TWO), Freed(name=ONE.name, remember_until_s=50.0))
    assert fleet.reserved == {TWO.name: TWO}
    assert fleet.taken == {"n3"}
    assert fleet.used_up == {ONE.name: 50.0}


def test_an_extension_never_shortens() -> None:
    fleet = after(
        Reserved(reservation=ONE), Extended(name=ONE.name, until_s=2000.0), Extended(name=ONE.name, until_s=1500.0)
    )
    assert fleet.reserved[ONE.name].until_s == 2000.0


def test_a_name_can_be_used_up_before_anything_was_reserved_under_it() -> None:
    assert after(Freed(name="x", remember_until_s=9.0)).used_up == {"x": 9.0}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ([Reserved(reservation=ONE), Reserved(reservation=replace(TWO, nodes=ONE.nodes[:1]))], "n1, which are taken"),
        ([Freed(name=ONE.name, remember_until_s=9.0), Reserved(reservation=ONE)], "a name that was used"),
        ([Extended(name=ONE.name, until_s=9.0)], "there is none"),
    ],
)
def test_a_change_that_cannot_have_been_made_is_damage(changes, complaint) -> None:
    with pytest.raises(DataError, match=complaint):
        after(*changes)


def test_names_are_forgotten_when_they_may_be() -> None:
    fleet = after(Freed(name="old", remember_until_s=10.0), Freed(name="new", remember_until_s=20.0))
    assert fleets.forget(fleet, 10.0).used_up == {"new": 20.0}


@pytest.mark.parametrize(
    "change", [Reserved(reservation=ONE), Extended(name="x", until_s=2.5), Freed(name="x", remember_until_s=9.0)]
)
def test_a_change_comes_back_as_it_was_written(change) -> None:
    data = fleets.FORM.encode_change(change, number=7)
    assert fleets.FORM.decode_change(data, number=7, where="here") == change


def test_a_fleet_comes_back_as_it_was_written() -> None:
    fleet = after(Reserved(reservation=ONE), Freed(name="x", remember_until_s=9.0))
    data = fleets.FORM.encode_state(fleet, number=64)
    assert data.startswith(b'{"v":1,"number":64,"fleet":{')
    assert fleets.FORM.decode_state(data, number=64, where="here") == fleet
