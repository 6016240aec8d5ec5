"""Runs that share a network with thin links between racks: who is placed where, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.arbiter_view import beside, left_over
from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import NetworkLevel
from tests.support.networked_house import NetworkedHouse, plan_in_earnest, trained_on
from tests.support.shared_house import Tenant, run_of

SIX_NODES = 48
"""Accelerators: more than a rack has. Those that follow the first run would fill its block."""

FIRST = {f"n{number:04d}" for number in range(6)}
BESIDE_IT = {f"n{number:04d}" for number in range(6, 12)}
APART = {f"n{number:04d}" for number in range(12, 18)}

PRIORITIES = [pytest.param(None, id="without a queue block"), pytest.param("normal", id="with one")]


def notes(house: NetworkedHouse, tenant: Tenant) -> list[str]:
    return [event.note for event in Journal(house.store, tenant.key).read() if event.kind == "plan_chosen"]


def hold_without_a_load(house: NetworkedHouse, nodes: set[str]) -> None:
    """Be a run of an older version, whose claims say nothing of the network."""
    other = house.add("z", len(nodes) * 8)
    claim: Claim = replace(house.driver_claim(other), held={NodeId(node): tuple(range(8)) for node in nodes})
    house.ground().claim(claim)


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_run_goes_where_the_links_are_idle_though_it_would_fit_best_beside_another(priority: str | None) -> None:
    house = NetworkedHouse()
    first, second = (house.start(letter, SIX_NODES, priority=priority) for letter in "ab")
    assert house.held() == {first.key: FIRST, second.key: APART}
    assert notes(house, second) == [""], "nobody is slowed there"
    alone = left_over(house.engine.topology(), house.claims(), run=second.key)
    assert set(plan_in_earnest(trained_on(SIX_NODES), alone, frozenset()).plans[0].placement.nodes) == BESIDE_IT
    house.until(lambda: all(isinstance(each.outcome, Succeeded) for each in (first, second)))


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_claim_of_which_no_load_is_known_keeps_nobody_away(priority: str | None) -> None:
    house = NetworkedHouse()
    hold_without_a_load(house, FIRST)
    second = house.start("b", SIX_NODES, priority=priority)
    assert house.held()[second.key] == BESIDE_IT


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_run_that_a_rack_holds_uses_none_of_its_link_and_goes_where_it_fits_best(priority: str | None) -> None:
    house = NetworkedHouse()
    house.start("a", SIX_NODES, priority=priority)
    inside = house.start("b", 16, priority=priority)
    assert house.held()[inside.key] == {"n0006", "n0007"}, "the rest of a rack whose link the other fills"


def test_links_that_were_measured_to_carry_more_than_is_claimed_are_as_good_as_idle() -> None:
    house = NetworkedHouse()
    house.start("a", SIX_NODES, priority=None)
    wide = NetworkLevel(level="block", bandwidth_bytes_per_s=50e9, is_measured=True)
    house.as_measured = lambda tree, _shape: replace(tree, network=(wide,))
    hold_without_a_load(house, APART | {"n0018"})
    second = house.start("b", SIX_NODES, priority=None)
    assert house.held()[second.key] == BESIDE_IT
    assert notes(house, second) == [""], "by what is claimed they would slow each other"


def test_what_a_run_put_on_links_is_gone_with_its_claim() -> None:
    house = NetworkedHouse()
    first, second = house.start("a", SIX_NODES), house.start("b", SIX_NODES)
    assert beside(house.engine.topology(), house.claims(), run=second.key) != house.engine.topology()
    for each in (first, second):
        house.release(each)
    assert beside(house.engine.topology(), house.claims()) == house.engine.topology()
    third = house.start("c", SIX_NODES)
    assert house.held() == {third.key: FIRST}, "where the first one was"


def test_a_run_that_makes_room_takes_its_load_along_and_brings_it_where_it_resumes() -> None:
    house = NetworkedHouse()
    victim = house.start("a", SIX_NODES, priority="low", num_steps=200)
    before = house.claims().claims[victim.key].load
    assert before is not None
    assert [link.domains for link in before.links] == [(("b00", "r001"),)]
    urgent = house.start("b", 192, priority="urgent", num_steps=20)
    house.until(lambda: house.state(urgent).phase is RunPhase.WATCHING)
    claims = house.claims().claims
    assert claims[victim.key].load is None
    assert claims[urgent.key].load is not None
    assert claims[urgent.key].load.links == (), "it holds every node"
    house.until(lambda: isinstance(urgent.outcome, Succeeded))
    house.until(lambda: house.state(victim).phase is RunPhase.WATCHING)
    assert house.claims().claims[victim.key].load == before


def test_who_slows_whom_is_in_the_note_of_the_plan_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    house = NetworkedHouse()
    house.start("a", SIX_NODES)
    hold_without_a_load(house, APART | {"n0018"})
    with caplog.at_level("INFO", logger="airflow_llmsched.control.arbiter"):
        second = house.start("b", SIX_NODES)
    assert house.held()[second.key] == BESIDE_IT, "nothing else holds it"
    (note,) = notes(house, second)
    assert note.startswith(
        f"Beside others: run {run_of('a')} (pretrain) on the links of the rack of n0004 slows this run"
    )
    assert f"this run on the links of the rack of n0004 slows run {run_of('a')} (pretrain) by " in note
    assert len(note) < 1000
    assert note in caplog.text


@pytest.mark.parametrize(
    "load",
    [
        pytest.param("much", id="no load at all"),
        pytest.param({"shape": "p5.48xlarge", "step_s": 0.0, "links": []}, id="a step that takes no time"),
        pytest.param({"shape": "p5.48xlarge", "step_s": float("nan"), "links": []}, id="a step that is no number"),
        pytest.param(
            {"shape": "p5.48xlarge", "step_s": 1.0, "links": [{"domains": "b00", "bytes_per_step": -1}]},
            id="half a link",
        ),
        pytest.param({"shape": "abacus", "step_s": 1.0, "links": []}, id="machines that nobody knows"),
        pytest.param(
            {
                "shape": "p5.48xlarge",
                "step_s": 1e-9,
                "links": [{"domains": [["elsewhere"], []], "bytes_per_step": 1e18, "alone_bytes_per_s": 1e-9}],
                "since": "tomorrow",
            },
            id="links of another network",
        ),
    ],
)
def test_a_load_that_is_damaged_or_from_elsewhere_keeps_nobody_from_planning(load: object) -> None:
    house = NetworkedHouse()
    house.start("a", SIX_NODES)
    keys = [info.key for info in house.store.list("arbiter/sim/records/")]
    num_changed = 0
    for key in keys:
        record = json.loads(house.store.get(key))
        claim = record["change"].get("claim", {})
        if claim.get("load"):
            claim["load"] = load
            num_changed += 1
            house.store.put(key, json.dumps(record).encode())
    assert num_changed == 1
    second = house.start("b", SIX_NODES)
    assert house.held()[second.key] == BESIDE_IT
    assert house.state(second).phase is RunPhase.WATCHING


def test_of_a_network_that_is_filled_by_a_load_beyond_measure_the_rest_is_used() -> None:
    house = NetworkedHouse()
    first = house.start("a", SIX_NODES)
    claim = house.claims().claims[first.key]
    assert claim.load is not None
    wild = tuple(replace(link, bytes_per_step=1e18, alone_bytes_per_s=1e-9) for link in claim.load.links)
    house.ground().claim(replace(claim, load=replace(claim.load, step_s=1e-9, links=wild)))
    second, third = house.start("b", SIX_NODES), house.start("c", SIX_NODES)
    assert house.held()[second.key] == APART
    assert house.state(third).phase is RunPhase.WATCHING
