from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.control import claim_reaping
from airflow_llmsched.control.arbiter_state import launch_number
from airflow_llmsched.control.claim_reaping import ClaimReaper
from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.reaper import AirflowWord, Reap, Spare
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import StoreError
from airflow_llmsched.ports import Engine
from tests.support.shared_house import SharedHouse, Tenant


class House(SharedHouse):
    word = AirflowWord.RUNNING

    def reaper(self, engine: Engine | None = None) -> ClaimReaper:
        return ClaimReaper(
            self.ground(),
            store=self.store,
            engine=engine or self.engine,
            ask=lambda _dag_id, _run_id: self.word,
            clock=self.clock,
        )

    def claim_again(self, tenant: Tenant) -> None:
        """Have a claim be left of a run that is over."""
        read = Journal(self.store, tenant.key).num_records()
        claim = replace(self.driver_claim(tenant), held={"r0n0": (0,)}, num_records=read)
        self.ground().claim(claim)


@pytest.fixture
def house() -> House:
    return House()


def test_what_a_run_claims_that_goes_on_is_spared(house: House) -> None:
    trains, waits = house.start("a", 8, num_steps=400), house.start("b", 8)
    found = {each.run: each.verdict for each in house.reaper().look()}
    assert "alive" in found[trains.key].reason
    assert "goes on" in found[waits.key].reason
    assert not any(isinstance(verdict, Reap) for verdict in found.values())


def test_what_a_run_claims_that_is_over_is_given_back_though_airflow_calls_it_running(house: House) -> None:
    tenant = house.start("a", 4, num_steps=20)
    house.until(lambda: isinstance(tenant.outcome, Succeeded))
    house.claim_again(tenant)
    (found,) = house.reaper().look()
    assert not isinstance(found.verdict, Reap)  # the worker may just be about to record that it is over
    house.clock.sleep(60.0)
    (found,) = house.reaper().look()
    assert "the run is succeeded" in found.verdict.reason
    reaped = house.reaper().reap(found)
    assert (reaped.is_gone, reaped.trouble) == (True, "")
    assert house.state(tenant).phase is RunPhase.SUCCEEDED


@pytest.mark.parametrize("word", [AirflowWord.FINISHED, AirflowWord.UNKNOWN])
def test_a_run_that_waits_and_whose_dag_run_is_over_is_ended_first(house: House, word: AirflowWord) -> None:
    holder, tenant = house.start("a", 8, num_steps=20), house.start("b", 8)
    house.until(lambda: isinstance(holder.outcome, Succeeded) and house.claims().claims[tenant.key].held != {})
    house.engine.stop(house.engine.live(tenant.key)[0], grace_s=1.0) if house.engine.live(tenant.key) else None
    house.clock.sleep(7200.0)
    assert not isinstance(house.reaper().look()[0].verdict, Reap)
    house.word = word
    (found,) = house.reaper().look()
    assert house.reaper().reap(found).is_gone
    assert house.state(tenant).phase is RunPhase.CANCELLED
    assert house.claims().claims == {}
    assert house.reaper().reap(found).is_gone


def test_a_claim_that_turns_out_to_be_needed_is_spared_after_all(house: House) -> None:
    tenant = house.start("a", 8)
    house.clock.sleep(7200.0)
    house.word = AirflowWord.UNKNOWN
    (found,) = house.reaper().look()
    assert isinstance(found.verdict, Reap)
    house.begin(tenant)
    assert "spared after all" in house.reaper().reap(found).trouble
    assert tenant.key in house.claims().claims


def test_a_journal_that_cannot_be_read_speaks_for_its_run(house: House) -> None:
    tenant = house.start("a", 8)
    house.clock.sleep(7200.0)
    house.word = AirflowWord.UNKNOWN
    whole = house.store.get

    def refuse(key: str) -> bytes:
        if tenant.key in key:
            raise StoreError("away")
        return whole(key)

    house.store.get = refuse  # type: ignore[method-assign]
    (found,) = house.reaper().look()
    assert "could not be read: away" in found.verdict.reason


def test_what_a_run_claims_whose_records_were_deleted_is_given_back_for_good(house: House) -> None:
    tenant = house.start("a", 4, num_steps=400)
    house.engine.stop(house.engine.live(tenant.key)[0], grace_s=1.0)
    house.clock.sleep(7200.0)
    for each in list(house.store.list(f"runs/{tenant.key}/")):
        house.store.delete(each.key)
    (found,) = house.reaper().look()
    assert not isinstance(found.verdict, Reap)
    house.word = AirflowWord.UNKNOWN
    (found,) = house.reaper().look()
    assert house.reaper().reap(found).is_gone
    assert house.claims().claims == {}
    house.begin(tenant)
    assert house.state(tenant).phase is RunPhase.WATCHING


def test_what_an_evaluation_claims_is_given_back_once_its_dag_run_is_over_and_nothing_is_launched_for_it(
    house: House,
) -> None:
    tenant = house.add("a", 1)
    launch = AttemptKey(run=RunKey(f"{tenant.key[:-1]}e"), generation=0, attempt=1)
    evaluation_intents(house.store, tenant.key).note(launch, at_s=house.clock.now_s())
    claim = replace(house.driver_claim(tenant), beside=tenant.key, num_records=launch_number(launch), dag_id="pretrain")
    house.ground().claim(replace(claim, gang=replace(claim.gang, key=launch.run), held={NodeId("r0n0"): (0,)}))
    (found,) = house.reaper().look()
    assert "goes on" in found.verdict.reason
    house.clock.sleep(7200.0)
    (found,) = house.reaper().look()
    assert "running" in found.verdict.reason
    house.word = AirflowWord.UNKNOWN
    (found,) = house.reaper().look()
    assert house.reaper().reap(found).is_gone
    assert house.claims().claims == {}
    assert not house.engine.abandon(launch) or house.engine.find(launch.run)  # it was given up, and stays so
    assert Journal(house.store, launch.run).num_records() == 0


def test_a_claim_that_is_taken_anew_while_it_is_reaped_is_a_trouble_with_a_reason(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = house.add("a", 1)
    launch = AttemptKey(run=RunKey(f"{tenant.key[:-1]}e"), generation=0, attempt=1)
    evaluation_intents(house.store, tenant.key).note(launch, at_s=house.clock.now_s())
    claim = replace(house.driver_claim(tenant), beside=tenant.key, num_records=launch_number(launch), dag_id="pretrain")
    claim = replace(claim, gang=replace(claim.gang, key=launch.run), held={NodeId("r0n0"): (0,)})
    house.ground().claim(claim)
    house.clock.sleep(7200.0)
    house.word = AirflowWord.UNKNOWN
    (found,) = house.reaper().look()
    abandon = house.engine.abandon

    def slowly(key: AttemptKey) -> bool:
        house.ground().claim(replace(claim, held={NodeId("r0n0"): (1,)}, num_records=claim.num_records + 1))
        return bool(abandon(key))

    monkeypatch.setattr(house.engine, "abandon", slowly)
    reaped = house.reaper().reap(found)
    assert (reaped.is_gone, reaped.trouble) == (False, "it claims something anew: look again")


def test_a_journal_that_is_damaged_while_its_claim_is_reaped_is_a_trouble_of_that_claim_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = house.start("a", 4, num_steps=400)
    house.engine.stop(house.engine.live(tenant.key)[0], grace_s=1.0)
    house.clock.sleep(7200.0)
    house.word = AirflowWord.UNKNOWN
    (found,) = house.reaper().look()
    opening = claim_reaping.open_closing_driver

    def damage(*arguments: Any, **named: Any) -> RunDriver:
        house.store.put(f"runs/{tenant.key}/journal/00000001.json", b"x")
        return opening(*arguments, **named)

    monkeypatch.setattr(claim_reaping, "open_closing_driver", damage)
    reaped = house.reaper().reap(found)
    assert (reaped.is_gone, list(house.claims().claims)) == (False, [tenant.key])
    assert reaped.trouble.startswith("not known to be gone: ")
    assert "is not JSON" in reaped.trouble


def test_what_is_held_of_machines_that_the_reapers_engine_does_not_list_is_spared(house: House, tmp_path: Path) -> None:
    """Lists of hosts may overlap and share one ground: whoever has another list cannot see the gangs of this one."""
    tenant = house.add("a", 2)
    claim = replace(house.driver_claim(tenant), held={NodeId("n0"): (0,), NodeId("n2"): (0,)}, dag_id="pretrain")
    house.ground().claim(claim)
    house.clock.sleep(7200.0)
    house.word = AirflowWord.UNKNOWN

    def verdict(num_nodes: int) -> Reap | Spare:
        engine = LocalEngine(root=str(tmp_path), num_nodes=num_nodes)
        (found,) = house.reaper(engine).look()
        return found.verdict

    assert isinstance(verdict(3), Reap)
    assert "n2, which is no node of these options" in verdict(2).reason
