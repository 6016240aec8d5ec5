"""A fleet is an engine like any other: of two simulated clusters, of two of real processes, and of one beside hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ssh_hosts import SshHosts

pytest.register_assert_rewrite("airflow_llmsched.testing.engine_contract")

from airflow_llmsched.testing.engine_contract import (  # noqa: E402 - rewritten from now on
    EngineContract,
    EngineHarness,
    PreemptingEngineContract,
)
from tests.support.fleet_engine import FleetHarness  # noqa: E402 - rewritten from now on
from tests.support.fleet_house import FleetSimHarness  # noqa: E402 - rewritten from now on
from tests.support.hosts_engine import HostsHarness  # noqa: E402 - rewritten from now on


class TestFleetOfTwoSimulatedEngines(PreemptingEngineContract):
    @pytest.fixture
    def harness(self) -> EngineHarness:
        return FleetSimHarness()


@pytest.mark.long
class TestFleetOfTwoLocalEngines(PreemptingEngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[EngineHarness]:
        harness = FleetHarness(tmp_path)
        yield harness
        harness.close()


@pytest.mark.server
class TestFleetOfALocalEngineAndHosts(EngineContract):
    """Where both are asked, neither's words are taken for the other's."""

    @pytest.fixture
    def harness(self, tmp_path: Path, machines: SshHosts) -> Iterator[EngineHarness]:
        hosts = HostsHarness(tmp_path / "hosts", machines)
        harness = FleetHarness(tmp_path, other=hosts)
        yield harness
        harness.close()
