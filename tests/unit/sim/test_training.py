"""Simulated training: steps, saves, orders, notices and faults."""

from __future__ import annotations

import itertools
from dataclasses import replace

from airflow_llmsched.control.context import Watch
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import AgentSpanKind, ChannelCursor, NodeReport
from airflow_llmsched.ports import RunChannel
from airflow_llmsched.sim.scripts import Hangs, SimTraining
from tests.support.sim_house import ROOT, SimHouse


def started(house: SimHouse, **changes: object) -> RunChannel:
    outcome = house.driver(**changes).start()
    assert isinstance(outcome, Watch)
    return house.hub.open(outcome.state.channel_root)


def reports(channel: RunChannel) -> list[NodeReport]:
    found, _ = channel.read(ChannelCursor(positions={}))
    return list(found)


def test_steps_are_contiguous_and_shorter_with_more_ranks() -> None:
    house = SimHouse(training=SimTraining(num_steps=6, work_s=8.0, checkpoint_interval_steps=None))
    channel = started(house)
    house.clock.sleep(60.0)
    steps = [step for report in reports(channel) for step in report.steps]
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.end_s - step.start_s == 2.0 for step in steps)
    assert all(before.loss > after.loss for before, after in itertools.pairwise(steps))


def test_init_and_saves_are_spans_of_every_rank_and_training_stands_still_in_them() -> None:
    house = SimHouse(training=SimTraining(num_steps=20, init_s=7.0, save_s=3.0, checkpoint_interval_steps=10))
    channel = started(house)
    house.clock.sleep(100.0)
    found = reports(channel)
    spans = [span for report in found for span in report.spans]
    steps = [step for report in found for step in report.steps]
    init = [span for span in spans if span.kind is AgentSpanKind.INIT]
    saves = [span for span in spans if span.kind is AgentSpanKind.SAVE]
    assert [span.end_s - span.start_s for span in init] == [7.0] * 4
    assert [(span.rank, span.end_s - span.start_s) for span in saves if span.step == 10] == [(r, 3.0) for r in range(4)]
    assert not any(save.start_s < step.end_s and step.start_s < save.end_s for save in saves for step in steps)


def test_order_to_save_is_obeyed_at_the_next_step_and_once() -> None:
    house = SimHouse(training=SimTraining(num_steps=1000, checkpoint_interval_steps=None))
    channel = started(house)
    house.clock.sleep(10.5)
    channel.order_checkpoint()
    house.clock.sleep(20.0)
    assert len([ref for ref in house.checkpoints.scan(ROOT) if ref.complete]) == 1
    assert len([mark for report in reports(channel) for mark in report.marks]) == 1


def test_order_to_stop_is_a_save_and_exit_0() -> None:
    house = SimHouse(training=SimTraining(num_steps=1000, checkpoint_interval_steps=None))
    channel = started(house)
    house.clock.sleep(10.5)
    channel.order_stop(reason="deadline")
    house.clock.sleep(5.0)
    (handle,) = house.engine.find(house.context.run_key)
    assert house.engine.poll([handle])[handle].phase is GangPhase.SUCCEEDED
    assert [ref.complete for ref in house.checkpoints.scan(ROOT)] == [True]


def test_notice_makes_the_ranks_save_by_themselves() -> None:
    house = SimHouse(training=SimTraining(num_steps=1000, checkpoint_interval_steps=None))
    started(house)
    house.clock.sleep(10.5)
    house.engine.preempt(NodeId("n1"), grace_s=10.0)
    house.clock.sleep(8.0)
    assert [ref.complete for ref in house.checkpoints.scan(ROOT)] == [True]


def test_save_cut_short_by_the_kill_leaves_a_torn_checkpoint() -> None:
    house = SimHouse(training=SimTraining(num_steps=1000, save_s=60.0, checkpoint_interval_steps=None))
    started(house)
    house.clock.sleep(10.5)
    house.engine.preempt(NodeId("n1"), grace_s=5.0)
    house.clock.sleep(100.0)
    assert [ref.complete for ref in house.checkpoints.scan(ROOT)] == [False]


def test_stall_keeps_ranks_alive_without_progress() -> None:
    house = SimHouse()
    house.engine.faults = [Hangs(at_step=3, lasts_s=50.0)]
    channel = started(house)
    house.clock.sleep(40.0)
    newest = reports(channel)[-1]
    assert newest.at_s - newest.ranks[0].heartbeat_s > 25.0
    assert newest.ranks[0].step == 2
    assert all(rank.speaks for rank in newest.ranks)
    house.clock.sleep(40.0)
    assert max(step.step for report in reports(channel) for step in report.steps) > 3


def test_checkpoint_that_cannot_be_loaded_fails_the_rank_that_loads_it() -> None:
    house = SimHouse()
    path = house.checkpoints.begin_save(ROOT, step=10, world_size=4)
    house.checkpoints.finish_save(path)
    started(house)
    house.checkpoints.damage(path)
    house.clock.sleep(20.0)
    (handle,) = house.engine.find(house.context.run_key)
    status = house.engine.poll([handle])[handle]
    assert status.first_end is not None
    assert status.first_end.log_tail == f"cannot load {path}"


def test_same_seed_same_run_and_another_seed_another() -> None:
    def ends_s(seed: int) -> list[float]:
        house = SimHouse(training=SimTraining(num_steps=10, jitter_ratio=0.5), seed=seed)
        channel = started(house)
        house.clock.sleep(100.0)
        return [step.end_s for report in reports(channel) for step in report.steps]

    assert ends_s(1) == ends_s(1)
    assert ends_s(1) != ends_s(2)


def test_ranks_that_live_on_unseen_train_and_save_on_but_nobody_hears_of_it() -> None:
    house = SimHouse(training=SimTraining(num_steps=1000, checkpoint_interval_steps=10))
    house.context = replace(house.context, lease_s=30.0)
    channel = started(house)
    house.clock.sleep(20.5)
    house.engine.partition(NodeId("n0"))
    house.clock.sleep(200.0)
    heard = max(step.step for report in reports(channel) for step in report.steps)
    saved = max(ref.step for ref in house.checkpoints.scan(ROOT) if ref.complete)
    assert heard < 15
    assert heard + 10 < saved < 60  # until its lease and grace were over


def test_gang_whose_first_rank_is_gone_trains_no_more() -> None:
    house = SimHouse(training=SimTraining(num_steps=1000, checkpoint_interval_steps=10))
    started(house)
    house.clock.sleep(20.5)
    house.engine.partition(NodeId("n1"))
    house.clock.sleep(200.0)
    assert [ref.step for ref in house.checkpoints.scan(ROOT)] == [10]
