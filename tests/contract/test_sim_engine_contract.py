"""The simulated engine proves what the real ones prove."""

from __future__ import annotations

import pytest

from airflow_llmsched.testing.engine_contract import EngineHarness, PreemptingEngineContract
from tests.support.sim_harness import SimHarness


class TestSimEngineContract(PreemptingEngineContract):
    @pytest.fixture
    def harness(self) -> EngineHarness:
        return SimHarness()
