"""A simulated deployment whose gangs may be orphaned, and the reaper that looks after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_llmsched.control.context import Watch
from airflow_llmsched.control.reaper import AirflowWord
from airflow_llmsched.control.reaping import Reaper
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import RunOrigin
from airflow_llmsched.ports import Engine
from tests.support.sim_house import RUN, SimHouse

DEPLOYMENT = "deployment-a"


class ReapedHouse(SimHouse):
    """A house whose run has a lease and an origin. ``word`` is what Airflow says when asked; ``asked`` whom about."""

    def __init__(self, *, lease_s: float | None = 120.0, origin: bool = True, **changes: Any) -> None:
        super().__init__(**changes)
        said = RunOrigin(deployment_id=DEPLOYMENT, run=RUN, dag_id="pretrain", run_id="manual")
        self.context = replace(self.context, lease_s=lease_s, origin=said if origin else None)
        self.word = AirflowWord.UNKNOWN
        self.asked: list[tuple[str, str]] = []

    def launch(self) -> GangHandle:
        """Start the run and return its gang, up for a few seconds."""
        outcome = self.driver().start()
        assert isinstance(outcome, Watch)
        assert outcome.state.handle is not None
        self.clock.sleep(3.0)
        return outcome.state.handle

    def orphan(self) -> GangHandle:
        """Start the run, have its agents hang, and let days pass in which nobody watches."""
        handle = self.launch()
        self.engine.freeze_agents(handle)
        self.clock.sleep(2 * 86_400.0)
        return handle

    def forget(self) -> None:
        """Delete everything that the state root knows of the run."""
        for info in list(self.store.list(f"runs/{RUN}/")):
            self.store.delete(info.key)

    def reaper(self, *, engine: Engine | None = None, deployment_id: str = DEPLOYMENT) -> Reaper:
        """Return the reaper of a deployment on this house's engine."""
        return Reaper(
            store=self.store,
            deployment_id=deployment_id,
            engine=engine or self.engine,
            open_witness=self.hub.open,
            ask=self._ask,
            clock=self.clock,
        )

    def _ask(self, dag_id: str, run_id: str) -> AirflowWord:
        self.asked.append((dag_id, run_id))
        return self.word
