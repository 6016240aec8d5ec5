from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.provider.unclaimed import waiting_might_help, when_its_turn_comes

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
