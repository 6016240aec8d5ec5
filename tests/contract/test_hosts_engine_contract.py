from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("airflow_llmsched.testing.engine_contract")

from airflow_llmsched.testing.engine_contract import EngineContract, EngineHarness  # noqa: E402 - rewritten from now on
from tests.support.hosts_engine import HostsHarness  # noqa: E402 - rewritten from now on

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server


class TestHostsEngine(EngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path, machines: SshHosts) -> Iterator[EngineHarness]:
        harness = HostsHarness(tmp_path, machines)
        yield harness
        harness.close()
