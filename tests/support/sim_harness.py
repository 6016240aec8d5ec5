"""The simulated engine under test, for the engine contract: ranks are told by scripts, and time passes on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.sim.scripts import RANKS_VARIABLE, SIM_RANKS_COMMAND, SimRankScript
from airflow_llmsched.testing.engine_contract import EngineHarness, RankScript
from tests.support.sim_house import SimHouse

TICK_S = 0.05


class SimHarness(EngineHarness):
    """A fresh simulated engine of 2 nodes of 2 slots."""

    def __init__(self) -> None:
        self.house = SimHouse(start_delay_s=0.5)
        self.engine = self.house.engine

    def with_scripts(self, gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
        sim = [
            SimRankScript(
                lasts_s=each.lasts_s,
                exit_code=each.exit_code,
                signal=each.signal,
                says=each.says,
                ignores_sigterm=each.ignores_sigterm,
            )
            for each in scripts
        ]
        environment = {RANKS_VARIABLE: codec.to_json(sim, list[SimRankScript]).decode()}
        return replace(gang, command=SIM_RANKS_COMMAND, environment=environment)

    def with_broken_command(self, gang: GangSpec) -> GangSpec:
        return replace(gang, command=("/no/such/command",))

    def channel_root(self, key: AttemptKey) -> str:
        return f"mem/channel/{key.name}"

    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        deadline_s = self.now_s() + limit_s
        while not predicate():
            assert self.now_s() < deadline_s, f"did not come true within {limit_s} s"
            self.house.clock.sleep(TICK_S)

    def now_s(self) -> float:
        return self.house.clock.now_s()

    def num_live_ranks(self, handle: GangHandle) -> int:
        return self.engine.num_live_ranks(handle)

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        self.engine.preempt(node, grace_s=grace_s, return_after_s=return_after_s)

    def lose(self, handle: GangHandle, node: NodeId) -> None:
        self.engine.lose_part(handle, node)
