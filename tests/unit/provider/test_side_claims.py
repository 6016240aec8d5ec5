from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_turn import START_S
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.side_claims import open_claims


class Slot:
    def __init__(self, key: Any) -> None:
        self.key = key

    def place(self, tree: TopologyTree) -> Placement:
        node = next(node for node in tree.nodes if node.usable_slots)
        return Placement(slots=(RankSlot(rank=0, node=node.id, slot=node.usable_slot_indexes[0], local_rank=0),))

    def asks(self, _tree: TopologyTree) -> QueuedGang:
        return QueuedGang(key=self.key, team="default", priority_class="normal")


def test_a_gang_beside_a_training_claims_for_its_run_and_two_never_the_same(pipeline: Any) -> None:
    settings = GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options)
    held = []
    for run in (pipeline.scope.evaluation_key, pipeline.scope.checks_key):
        claims = open_claims(settings, key=run, engine=pipeline.engine, runs_for_s=10.0)
        assert claims is not None
        placement = claims.hold(Slot(run), key=AttemptKey(run=run, generation=0, attempt=1))
        held.append((placement.nodes, placement.slots[0].slot))
    assert held == [((NodeId("n0"),), 0), ((NodeId("n0"),), 1)]
    scope = pipeline.scope
    ground = open_ground(pipeline.engine, "local", None, store=scope.store(), clock=SystemClock())
    assert ground is not None
    claim = ground.state().claims[scope.evaluation_key]
    assert (claim.beside, claim.run_id, claim.runs_for_s) == (scope.run_key, scope.run_id, 10 + START_S)


def test_where_a_scheduler_rules_nothing_is_claimed(pipeline: Any) -> None:
    settings = GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options)
    engine: Any = SimpleNamespace(features=frozenset({EngineFeature.OWN_QUEUE}))
    assert open_claims(settings, key=pipeline.scope.evaluation_key, engine=engine) is None
