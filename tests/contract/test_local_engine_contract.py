from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("airflow_llmsched.testing.engine_contract")

from airflow_llmsched.testing.engine_contract import EngineHarness, PreemptingEngineContract  # noqa: E402 - rewritten from now on
from tests.support.local_engine import LocalHarness  # noqa: E402 - rewritten from now on


class TestLocalEngine(PreemptingEngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[EngineHarness]:
        harness = LocalHarness(tmp_path)
        yield harness
        harness.close()
