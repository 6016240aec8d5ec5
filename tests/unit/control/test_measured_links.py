from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_llmsched.control.fencing import CLOCK_SKEW_S
from airflow_llmsched.control.measured_links import MeasuredLinks, open_measured_links
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.fleet import Cluster, Fleet
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.topology.link_records import COUNTS_FOR_S, LinkRecord
from tests.support.crashing import Gun, Shot, WorkerDied, listening
from tests.support.memory_store import MemoryStore

FLEET = Fleet(clusters=(Cluster(name="hall", engine="slurm"),))
KEY = "measured-links/hall.json"
RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def record(*nodes: str, at_s: float = 0.0, rate: float = 1e9) -> LinkRecord:
    return LinkRecord(
        level=None, domain=(), shape="dgx-h100", bytes_per_s=rate, at_s=at_s, nodes=tuple(map(NodeId, nodes))
    )


def links(store: MemoryStore, *keys: str, now_s: float = 0.0, limit_s: float = COUNTS_FOR_S) -> MeasuredLinks:
    return MeasuredLinks(store, keys or (KEY,), clock=VirtualClock(now_s), limit_s=limit_s)


def test_what_one_run_kept_counts_for_the_next_with_the_newest_of_the_same_nodes(store: MemoryStore) -> None:
    assert links(store).counted() == ()
    for each in (record("a", "b", at_s=1.0), record("a", "c", at_s=2.0), record("a", "b", at_s=3.0, rate=2e9)):
        links(store).keep(each)
    assert links(store, now_s=3.0).counted() == (record("a", "c", at_s=2.0), record("a", "b", at_s=3.0, rate=2e9))


def test_an_old_measurement_counts_no_more_and_one_of_a_wrong_clock_never_does(store: MemoryStore) -> None:
    links(store).keep(record("a", "b", at_s=100.0))
    assert links(store, now_s=100.0 + COUNTS_FOR_S - 1.0).counted()
    assert links(store, now_s=100.0 + COUNTS_FOR_S).counted() == ()
    assert links(store, now_s=160.0, limit_s=60.0).counted() == ()
    assert links(store, now_s=100.0, limit_s=0.0).counted() == ()
    assert links(store, now_s=100.0 - CLOCK_SKEW_S).counted()
    assert links(store, now_s=99.0 - CLOCK_SKEW_S).counted() == ()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff\xfe",
        b'{"records": [',
        b'{"records": 7}',
        b"[" * 100_000,
        b'{"records": [{"level": null, "domain": [], "shape": "x", "bytes_per_s": 0, "at_s": 0, "nodes": ["a"]}]}',
    ],
)
def test_what_is_damaged_is_told_and_counts_as_nothing_until_it_is_written_anew(
    store: MemoryStore, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    links(store, "other").keep(record("a", "c"))
    store.objects[KEY] = damaged
    with caplog.at_level(logging.WARNING):
        assert links(store, KEY, "other").counted() == (record("a", "c"),)
    assert "1 x damaged object of measured links" in caplog.text
    links(store).keep(record("a", "b"))
    assert links(store).counted() == (record("a", "b"),)


@pytest.mark.parametrize("side", list(Side))
def test_whoever_dies_while_it_keeps_one_loses_that_at_most(store: MemoryStore, side: Side) -> None:
    links(store).keep(record("a", "b"))

    def die() -> None:
        raise WorkerDied

    with listening(Gun(Shot("links.keep", side, 1), die)), pytest.raises(WorkerDied):
        links(store).keep(record("a", "c"))
    assert len(links(store).counted()) == (1 if side is Side.BEFORE else 2)
    links(store).keep(record("a", "c"))
    assert links(store).counted() == (record("a", "b"), record("a", "c"))


def opened(store: MemoryStore, engine: Any, name: str, options: Any = None, **changes: Any) -> MeasuredLinks:
    return open_measured_links(engine, name, options or {}, FLEET, store=store, clock=VirtualClock(0.0), **changes)


def test_what_is_measured_on_claimed_nodes_is_kept_for_their_ground(store: MemoryStore, tmp_path: Path) -> None:
    one, same, other = (LocalEngine(root=f"{tmp_path}/{name}", num_nodes=number) for name, number in
                        (("one", 2), ("one", 3), ("other", 2)))  # fmt: skip
    opened(store, one, "local", {"num_nodes": 2}).keep(record("n0", "n1"))
    assert opened(store, one, "local", {"num_nodes": 2}).counted() == (record("n0", "n1"),)
    assert opened(store, other, "local", {"num_nodes": 2}).counted() == ()
    ground = open_ground(one, "local", FLEET, store=store, clock=VirtualClock(), claims=True)
    assert ground is not None
    assert f"measured-links/{ground.name}.json" in store.objects
    assert open_ground(same, "local", FLEET, store=store, clock=VirtualClock(), claims=True)
    assert opened(store, same, "local").counted() == (record("n0", "n1"),), "a longer list of the same machines"


def test_without_claims_it_is_kept_for_whoever_opens_the_engine_alike(store: MemoryStore) -> None:
    slurm: Any = SimpleNamespace(features=frozenset({EngineFeature.OWN_QUEUE}))
    opened(store, slurm, "slurm", {"a": 1, "b": 2}).keep(record("n0", "n1"))
    assert opened(store, slurm, "slurm", {"b": 2, "a": 1}).counted()
    assert opened(store, slurm, "slurm", {"a": 2}).counted() == ()
    opened(store, slurm, "fleet").keep(record("hall/n0", "hall/n1"))
    assert opened(store, slurm, "hall").counted() == (record("hall/n0", "hall/n1"),)


def test_what_a_run_measured_on_machines_that_it_rented_is_its_own(store: MemoryStore) -> None:
    rented: Any = SimpleNamespace(features=frozenset({EngineFeature.NODES_ARE_RENTED}))
    opened(store, rented, "hosts", run=RUN).keep(record("n0", "n1"))
    assert opened(store, rented, "hosts", run=RUN).counted()
    assert opened(store, rented, "hosts", run=RunKey("ls-bbbbbbbbbbbbbbbbbbbb")).counted() == ()
    assert [key for key in store.objects if key.startswith(f"runs/{RUN}/")]
