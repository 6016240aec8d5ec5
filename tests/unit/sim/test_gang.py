"""One simulated gang's end."""

from __future__ import annotations

from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.gang import LOG_TAIL_LINES, Ending, SimGang
from airflow_llmsched.sim.world import SimWorld
from tests.support.sim_house import RUN, plan_of

KEY = AttemptKey(run=RUN, generation=1, attempt=1)


def gang() -> tuple[SimGang, VirtualClock]:
    clock = VirtualClock(0.0)
    plan = plan_of(("n0", 2), ("n1", 2))
    spec = GangSpec(
        key=KEY, placement=plan.placement, layout=plan.layout, command=("x",), channel_root="c", grace_s=3.0
    )
    made = SimGang(SimWorld(clock), spec, GangHandle(engine="sim", key=KEY, native_id="x"))
    made.run()
    return made, clock


def test_ranks_that_ignore_sigterm_keep_the_gang_from_ending_for_its_grace() -> None:
    made, clock = gang()
    made.ignores_sigterm = {3}
    made.exit(0, exit_code=7)
    assert (made.phase, made.alive) == (GangPhase.RUNNING, {3})
    clock.sleep(3.0)
    made.world.advance()
    assert (made.phase, made.alive, made.ended_at_s) == (GangPhase.FAILED, set(), 3.0)


def test_first_end_explains_the_gangs_and_later_ones_do_not() -> None:
    made, _ = gang()
    made.exit(2, exit_code=None, signal=9, signal_name="SIGKILL")
    made.exit(0, exit_code=1)
    made.fall(Ending(phase=GangPhase.STOPPED, reason="late"), grace_s=0.0)
    status = made.status()
    assert status.first_end is not None
    assert (status.phase, status.first_end.rank, status.first_end.signal) == (GangPhase.FAILED, 2, 9)
    assert "SIGKILL" in status.reason


def test_log_tail_is_bounded() -> None:
    made, _ = gang()
    made.said[1] = "\n".join(str(number) for number in range(100))
    made.exit(1, exit_code=1)
    end = made.status().first_end
    assert end is not None
    assert end.log_tail.splitlines() == [str(number) for number in range(100 - LOG_TAIL_LINES, 100)]


def test_gang_that_ended_before_it_ran_never_runs() -> None:
    clock = VirtualClock(0.0)
    made, _ = gang()
    fresh = SimGang(SimWorld(clock), made.spec, made.handle)
    fresh.fall(Ending(phase=GangPhase.STOPPED, reason="stopped"), grace_s=1.0)
    fresh.run()
    assert (fresh.phase, fresh.alive, fresh.started_at_s) == (GangPhase.STOPPED, set(), None)
