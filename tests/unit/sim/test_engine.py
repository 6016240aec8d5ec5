"""What the simulated engine adds to the contract (tests/contract/test_sim_engine_contract.py): the platform's whims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.context import Watch
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.errors import CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.sim.engine import SimEngine
from airflow_llmsched.sim.scripts import RANKS_VARIABLE, SIM_RANKS_COMMAND, SimTraining
from tests.support.sim_house import RUN, SimHouse, plan_of

N0, N1 = NodeId("n0"), NodeId("n1")


def gang(number: int = 1, *places: tuple[str, int], **changes: object) -> GangSpec:
    plan = plan_of(*(places or (("n0", 1), ("n1", 1))))
    spec = GangSpec(
        key=AttemptKey(run=RUN, generation=1, attempt=number),
        placement=plan.placement,
        layout=plan.layout,
        command=SIM_RANKS_COMMAND,
        channel_root=f"ch{number}",
        environment={RANKS_VARIABLE: "[" + ",".join(['{"lasts_s": null}'] * plan.layout.world_size) + "]"},
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def submit(house: SimHouse, spec: GangSpec) -> GangHandle:
    return house.engine.submit(house.engine.render(spec), key=spec.key)


def test_lost_node_takes_every_gang_on_it_and_can_come_back() -> None:
    house = SimHouse()
    first, second = submit(house, gang(1)), submit(house, gang(2, ("n1", 1)))
    house.clock.sleep(2.0)
    house.engine.lose_node(N1, return_after_s=30.0)
    assert {status.phase for status in house.engine.poll([first, second]).values()} == {GangPhase.LOST}
    with pytest.raises(CapacityError, match="node n1 cannot be used: lost"):
        submit(house, gang(3))
    house.clock.sleep(30.0)
    submit(house, gang(4))
    assert len(house.live()) == 1


def test_unknown_node_is_refused() -> None:
    with pytest.raises(CapacityError, match="no such node"):
        submit(SimHouse(), gang(1, ("n9", 1)))


def test_request_of_another_engine_is_refused() -> None:
    house = SimHouse()
    request = replace(house.engine.render(gang()), engine="slurm")
    with pytest.raises(SpecError, match="slurm"):
        house.engine.submit(request, key=gang().key)


def test_blind_engine_answers_no_question() -> None:
    house = SimHouse()
    handle = submit(house, gang())
    house.engine.blind(for_s=10.0)
    for ask in (
        lambda: house.engine.find(RUN),
        lambda: house.engine.poll([handle]),
        house.engine.topology,
        lambda: house.engine.stop(handle, grace_s=1.0),
        lambda: submit(house, gang(2)),
        lambda: house.engine.log_tail(handle, rank=0, num_lines=1),
    ):
        with pytest.raises(CouldNotLookError):
            ask()
    house.clock.sleep(10.0)
    assert list(house.engine.find(RUN)) == [handle]


def test_submission_whose_answer_is_lost_has_happened() -> None:
    house = SimHouse()
    house.engine.lose_answers(1)
    with pytest.raises(CouldNotLookError, match="answer"):
        submit(house, gang())
    (handle,) = house.engine.find(RUN)
    assert submit(house, gang()) == handle


def test_gang_slower_to_start_than_its_limit_fails_whole() -> None:
    house = SimHouse(start_delay_s=50.0)
    handle = submit(house, gang(1, start_limit_s=20.0))
    house.clock.sleep(60.0)
    status = house.engine.poll([handle])[handle]
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_TIMEOUT)
    assert house.engine.num_live_ranks(handle) == 0


def test_lease_that_nobody_renews_ends_the_gang() -> None:
    house = SimHouse()
    handle = submit(house, gang(1, lease_s=30.0))
    house.clock.sleep(20.0)
    house.hub.open("ch1").renew(until_s=house.clock.now_s() + 30.0)
    house.clock.sleep(25.0)
    assert house.live() == (handle,)
    house.clock.sleep(6.0)
    assert house.live() == ()
    assert "lease" in house.engine.poll([handle])[handle].reason


def test_node_that_is_cut_off_is_lost_unconfirmed_and_its_rank_lives_until_its_lease_and_grace_end() -> None:
    house = SimHouse()
    handle = submit(house, gang(1, lease_s=30.0, grace_s=5.0))
    house.clock.sleep(11.0)  # 1 s to start
    house.hub.open("ch1").renew(until_s=house.clock.now_s() + 30.0)
    house.engine.partition(N1, heals_after_s=1.0, clock_offset_s=-2.0)
    status = house.engine.poll([handle])[handle]
    assert (status.phase, status.unconfirmed_nodes) == (GangPhase.LOST, (N1,))
    assert house.engine.num_live_ranks(handle) == 1
    house.clock.sleep(2.0)
    assert [node.num_free_slots for node in house.engine.topology().nodes] == [2, 1]  # it holds its slot
    house.clock.sleep(34.5)
    assert house.engine.num_live_ranks(handle) == 1
    house.clock.sleep(1.0)
    assert house.engine.num_live_ranks(handle) == 0


def test_rank_cut_off_without_a_lease_lives_for_ever() -> None:
    house = SimHouse()
    handle = submit(house, gang(1))
    house.clock.sleep(2.0)
    house.engine.partition(N1)
    house.clock.sleep(1e6)
    assert house.engine.num_live_ranks(handle) == 1


def test_gangs_of_one_run_that_overlap_are_noted() -> None:
    house = SimHouse()
    submit(house, gang(1))
    submit(house, gang(2))
    house.clock.sleep(2.0)
    house.live()
    assert house.engine.overlaps == [(gang(1).key.name, gang(2).key.name)]


def test_preempted_node_that_does_not_return_stays_unusable() -> None:
    house = SimHouse()
    house.engine.preempt(N0, grace_s=1.0)
    house.clock.sleep(1e6)
    assert house.engine.topology().num_usable_slots == 2


def test_frozen_agents_neither_report_nor_mind_their_lease() -> None:
    house = SimHouse(training=SimTraining(num_steps=10_000))
    house.context = replace(house.context, lease_s=30.0)
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    assert outcome.state.handle is not None
    house.clock.sleep(5.0)
    house.engine.freeze_agents(outcome.state.handle)
    channel = house.hub.open(outcome.state.channel_root)
    frozen_at_s = channel.last_sign_s()
    assert frozen_at_s == house.clock.now_s()
    house.clock.sleep(1000.0)
    assert channel.last_sign_s() == frozen_at_s
    assert len(house.live()) == 1


def test_its_topology_says_all_that_the_tree_does_which_it_was_made_of() -> None:
    house = SimHouse()
    network = (NetworkLevel(level=None, bandwidth_bytes_per_s=1e9),)
    tree = replace(house.engine.topology(), network=network, switches_reduce=True)
    engine = SimEngine(house.world, tree, hub=house.hub, checkpoints=house.checkpoints)
    assert engine.topology() == tree
