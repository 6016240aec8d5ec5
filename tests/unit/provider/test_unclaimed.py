from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.provider.unclaimed import loads_now, waiting_might_help, when_its_turn_comes

OTHER = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")


def test_a_run_that_waits_its_turn_is_planned_on_all_that_works(pipeline, demo_spec):
    tree = pipeline.engine.topology()
    busy = replace(tree, nodes=tuple(replace(node, num_free_slots=0, free_slots=()) for node in tree.nodes))
    waits = replace(demo_spec, queue=QueueWish())
    assert when_its_turn_comes(busy, waits, engine=pipeline.engine).num_usable_slots == 2
    assert when_its_turn_comes(busy, demo_spec, engine=pipeline.engine) == busy
    rules_itself = SimpleNamespace(features=frozenset({EngineFeature.OWN_QUEUE}))
    assert when_its_turn_comes(busy, waits, engine=rules_itself) == busy
    assert waiting_might_help(busy, demo_spec, engine=pipeline.engine)
    assert not waiting_might_help(tree, demo_spec, engine=pipeline.engine)
    assert not waiting_might_help(busy, waits, engine=pipeline.engine)
    assert not waiting_might_help(busy, demo_spec, engine=rules_itself)


def test_what_other_runs_put_on_the_network_is_read_from_their_claims_where_a_run_does_not_wait(pipeline, demo_spec):
    pipeline.run("open_run")
    load = NetworkLoad(shape="p5.48xlarge", step_s=1.0)
    ground = open_ground(pipeline.engine, "local", None, store=pipeline.scope.store(), clock=SystemClock())
    gang = QueuedGang(key=OTHER, team="default", priority_class="normal")
    ground.claim(Claim(gang=gang, num_records=1, since_s=0.0, held={NodeId("n0"): (0,)}, started_s=1.0, load=load))

    def loads(spec, engine=pipeline.engine, scope=pipeline.scope):
        return loads_now(scope, spec, engine=engine, name="local")

    assert loads(demo_spec) == {f"run {OTHER}": load}
    assert loads(demo_spec, scope=replace(pipeline.scope, run_key=OTHER)) == {}, "its own"
    assert loads(replace(demo_spec, queue=QueueWish())) == {}
    assert loads(demo_spec, engine=SimpleNamespace(features=frozenset({EngineFeature.OWN_QUEUE}))) == {}
    rented = SimpleNamespace(features=frozenset({EngineFeature.NODES_ARE_RENTED}))
    assert loads(demo_spec, engine=rented) == {}, "nothing is shared out there"
