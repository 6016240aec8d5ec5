from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("airflow_llmsched.testing.engine_contract")

from airflow_llmsched.testing.engine_contract import EngineContract, EngineHarness  # noqa: E402 - rewritten from now on
from tests.support.slurm_cluster import SlurmCluster  # noqa: E402 - rewritten from now on
from tests.support.slurm_engine import SlurmHarness  # noqa: E402 - rewritten from now on

pytestmark = pytest.mark.server


class TestSlurmEngine(EngineContract):
    @pytest.fixture
    def harness(self, slurm: SlurmCluster) -> Iterator[EngineHarness]:
        harness = SlurmHarness(slurm)
        yield harness
        harness.close()
