from __future__ import annotations

import json

import pytest

from airflow_llmsched.control.lease_book import LeaseBook
from airflow_llmsched.control.rented_engine import RentedEngine
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.provider.run_engine import open_run_engine, options_of_run, renting_run

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
LOGIN = {"user": "trainer", "key": "/keys/user", "known_hosts": "/keys/known"}


def test_an_engine_by_name_is_opened_as_ever(state_root):
    assert isinstance(open_run_engine("local", {"num_nodes": 1, "slots_per_node": 1}), LocalEngine)


def test_hosts_that_are_rented_are_an_engine_of_the_runs_own_leases(state_root):
    engine = open_run_engine("hosts", {**LOGIN, "hosts": {"run": str(RUN)}})
    assert isinstance(engine, RentedEngine)
    assert engine.name == "hosts"
    assert engine.topology().levels == ("region", "zone", "host")
    assert [book.run for book in engine._books()] == [RUN]


def test_without_a_run_the_leases_of_all_runs_count(state_root):
    other = RunKey("ls-bbbbbbbbbbbbbbbbbbbb")
    store = open_store(str(state_root))
    for run in (RUN, other):
        LeaseBook(store, run).close(at_s=1.0)
    engine = open_run_engine("hosts", {**LOGIN, "hosts": {}})
    assert [book.run for book in engine._books()] == [RUN, other]


def test_a_run_names_itself_in_options_that_survive_json_and_in_no_others():
    options = options_of_run({**LOGIN, "hosts": {"port": 2222}}, RUN)
    assert json.loads(json.dumps(options)) == {**LOGIN, "hosts": {"port": 2222, "run": str(RUN)}}
    listed = {**LOGIN, "hosts": [{"name": "h1", "address": "h1", "slots": 1}]}
    assert options_of_run(listed, RUN) == listed
    assert options_of_run({"num_nodes": 2}, RUN) == {"num_nodes": 2}
    assert [renting_run(each) for each in (options, listed, {"hosts": {}}, {})] == [RUN, None, None, None]


@pytest.mark.parametrize(
    ("rented", "path"),
    [
        ({"machines": 3}, r"hosts\.machines"),
        ({"port": "22"}, r"hosts\.port"),
        ({"slots": 8}, r"hosts\.slots"),
        ({"slots": {"p5": 0}}, r"hosts\.slots\.p5"),
    ],
)
def test_what_is_wrong_is_named(state_root, rented, path):
    with pytest.raises(SpecError, match=path):
        open_run_engine("hosts", {**LOGIN, "hosts": rented})
