from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.open_arbiter import loads_of_others, open_ground, open_grounds
from airflow_llmsched.control.open_fleet import open_fleet
from airflow_llmsched.domain.fleet import Cluster, Fleet
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.engines.hosts.engine import HostsEngine
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import workload_of

FLEET = Fleet(clusters=(Cluster(name="hall", engine="local"),))


def opened(name: str, *features: EngineFeature, fleet: Fleet | None = FLEET) -> Any:
    engine: Any = SimpleNamespace(features=frozenset(features))
    return open_ground(engine, name, fleet, store=MemoryStore(), clock=VirtualClock(), claims=True)


@pytest.mark.parametrize(("name", "ground"), [("local", "local"), ("hall", "fleet"), ("fleet", "fleet")])
def test_a_fleet_and_its_clusters_are_one_ground_and_each_adapter_is_one(name: str, ground: str) -> None:
    assert opened(name).name == ground


def test_emulated_nodes_of_another_root_are_others_though_named_alike(tmp_path: Path) -> None:
    def ground(root: str, name: str = "local") -> str:
        return open_ground(
            LocalEngine(root=root), name, FLEET, store=MemoryStore(), clock=VirtualClock(), claims=True
        ).name

    one, other = ground(f"{tmp_path}/one"), ground(f"{tmp_path}/other")
    assert one != other
    assert one.startswith("local-")
    assert ground(f"{tmp_path}/one/") == one
    assert ground(f"{tmp_path}/one", "hall") == "fleet"


def test_an_engine_with_a_scheduler_of_its_own_has_no_claims() -> None:
    assert opened("slurm", EngineFeature.FREE_CAPACITY, EngineFeature.OWN_QUEUE) is None
    assert EngineFeature.OWN_QUEUE in SlurmEngine.features


def test_what_a_run_has_rented_is_nothing_to_share_out() -> None:
    assert opened("hosts", EngineFeature.FREE_CAPACITY, EngineFeature.NODES_ARE_RENTED) is None


def hosts(tmp_path: Path, *names: str) -> HostsEngine:
    listed = [{"name": name, "address": f"{name}.example", "slots": 8} for name in names]
    return HostsEngine(root=str(tmp_path), hosts=listed, user="u", key="/k", known_hosts="/h")


def test_lists_of_hosts_are_one_ground_where_they_share_machines_and_each_decides_for_its_own(tmp_path: Path) -> None:
    store = MemoryStore()

    def ground(*names: str) -> Any:
        return open_ground(hosts(tmp_path, *names), "hosts", None, store=store, clock=VirtualClock(), claims=True)

    one, same, more, other = ground("a", "b"), ground("b", "a"), ground("b", "c"), ground("d")
    assert one.name == same.name == more.name != other.name
    assert one.scope == same.scope != more.scope


def test_hosts_of_a_fleets_cluster_are_the_fleets(tmp_path: Path) -> None:
    store, clock = MemoryStore(), VirtualClock()
    cluster = Cluster(name="hall", engine="hosts")
    fleet = open_fleet(
        "hall",
        Fleet(clusters=(cluster,)),
        store=store,
        clock=clock,
        open_engine=lambda _name, _options: hosts(tmp_path, "a"),
        open_witness=lambda _root: None,  # type: ignore[arg-type, return-value]
        root=str(tmp_path),
    )
    assert fleet.inventory == {"hall/a": "a.example:22"}
    ground: Any = open_ground(fleet, "hall", FLEET, store=store, clock=clock, claims=True)
    assert (ground.name, ground.scope) == ("fleet", "hall")
    with pytest.raises(SpecError, match="hall/a of the fleet file"):
        open_ground(hosts(tmp_path, "a"), "hosts", FLEET, store=store, clock=clock, claims=True)


def test_a_run_keeps_its_claims_where_they_are_while_its_list_is_changed_to_one_that_bridges_two(
    tmp_path: Path,
) -> None:
    """Else its own claim would keep its task from going on, its teardown from giving back, and all others for ever."""
    store, clock = MemoryStore(), VirtualClock()
    run, other = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), RunKey("ls-bbbbbbbbbbbbbbbbbbbb")

    def ground(*names: str, claims: bool = True, runs: tuple[RunKey, ...] = (run,)) -> Any:
        return open_ground(hosts(tmp_path, *names), "hosts", None, store=store, clock=clock, claims=claims, runs=runs)

    def claim(key: RunKey, node: str) -> Claim:
        gang = QueuedGang(key=key, team="red", priority_class="normal")
        return Claim(gang=gang, num_records=1, since_s=0.0, held={NodeId(node): (0,)})

    grounds = {name: ground(name) for name in "abcd"}
    for name, key in (("a", other), ("d", run)):
        grounds[name].claim(claim(key, name))
    for claims in (True, False):
        kept = ground("a", "d", "e", claims=claims)
        assert (kept.name, set(kept.lacks)) == (grounds["d"].name, {"a", "e"} if claims else set())
    with pytest.raises(SpecError, match="let those end first"):
        ground("a", "d", runs=())
    bridged = open_grounds(hosts(tmp_path, "a", "d"), "hosts", None, store=store, clock=clock)
    assert {each.name for each in bridged} == {grounds["a"].name, grounds["d"].name}
    for name, key in (("a", other), ("d", run)):
        grounds[name].free(key, num_records=1)
    both = ground("a", "d", "e")
    assert both.name not in {each.name for each in grounds.values()}
    assert both.lacks == frozenset()


def test_whoever_has_less_of_a_machine_than_another_or_has_it_divided_decides_for_its_own(tmp_path: Path) -> None:
    """By the other's tree it would be given slots that its own engine does not have, or nothing for ever."""
    store = MemoryStore()

    def ground(**options: Any) -> Any:
        engine = LocalEngine(root=str(tmp_path), num_nodes=1, **options)
        return open_ground(engine, "local", None, store=store, clock=VirtualClock(), claims=True)

    halves = [{"slot": 0, "kind": "time", "slices": 2}]
    opened = [ground(slots_per_node=8), ground(slots_per_node=4), ground(slots_per_node=8, divided=halves)]
    assert len({each.name for each in opened}) == 1
    assert len({each.scope for each in opened}) == 3
    host = {"name": "a", "address": "a.example", "divided": []}
    listed = [[host | {"slots": 8}], [host | {"slots": 4}], [host | {"slots": 8, "divided": halves}]]
    engines = [HostsEngine(root="/r", hosts=each, user="u", key="/k", known_hosts="/h") for each in listed]
    assert len({each.parts["a"] for each in engines}) == 3  # type: ignore[index]


def test_what_others_put_on_the_network_is_told_whoever_runs_at_once_and_what_is_damaged_is_nothing() -> None:
    store, clock = MemoryStore(), VirtualClock()
    engine: Any = SimpleNamespace(features=frozenset())
    ground = open_ground(engine, "hall", FLEET, store=store, clock=clock, claims=True)
    assert ground is not None
    run, load, at_once = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), NetworkLoad(shape="a", step_s=1.0), workload_of()
    gang = QueuedGang(key=run, team="default", priority_class="normal")
    ground.claim(Claim(gang=gang, num_records=1, since_s=0.0, held={NodeId("hall/n0"): (0,)}, load=load))

    def told(workload: WorkloadSpec = at_once, *features: EngineFeature, me: RunKey | None = None) -> Any:
        asked: Any = SimpleNamespace(features=frozenset(features))
        return loads_of_others(asked, "fleet", FLEET, workload, store=store, clock=clock, run=me)

    assert told() == {f"run {run}": load}
    assert told(me=run) == {}, "its own"
    assert told(replace(at_once, queue=QueueWish())) == {}, "others will run when its turn comes"
    assert told(at_once, EngineFeature.OWN_QUEUE) == {}
    assert told(at_once, EngineFeature.NODES_ARE_RENTED) == {}
    (record,) = [each.key for each in store.list("arbiter/") if "/records/" in each.key]
    store.put(record, b"torn")
    assert told() == {}
