"""Google Cloud proves what every cloud must, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.testing.cloud_contract import CloudHarness, SpreadCloudContract, WordyCloudContract
from tests.support.gcp_cloud import SHAPE, GcpCloudHarness, TpuHarness


class TestGcpMachines(WordyCloudContract, SpreadCloudContract):
    @pytest.fixture
    def harness(self) -> Iterator[GcpCloudHarness]:
        harness = GcpCloudHarness()
        yield harness
        harness.close()


WAIT_S = 1800.0


class QueuingContract(WordyCloudContract, SpreadCloudContract):
    """What is not there is waited for, so that a shortage is no refusal."""

    @pytest.mark.parametrize("num_free", [0, 1, 3])
    def test_too_few_nodes_are_none(self, harness: CloudHarness, num_free: int) -> None:
        """Field cases E1 and E5, where the cloud waits instead: nothing comes until all can."""
        harness.run_short(harness.offer(), num_nodes=num_free)
        lease = self.acquire(harness, num_nodes=4)
        harness.advance(WAIT_S)
        waiting = self.look(harness, lease)
        assert (waiting.state, waiting.nodes) == (LeaseState.PENDING, ())
        assert waiting.reason
        assert set(waiting.leftovers) == harness.billed() != set()
        harness.run_short(harness.offer(), num_nodes=4)
        harness.wait(lambda: self.look(harness, lease).state is LeaseState.ACTIVE)
        assert len(self.look(harness, lease).nodes) == 4

    def test_a_removal_that_fails_is_tried_again(self, harness: CloudHarness) -> None:
        """Field case E7: the request could still be met, and is withdrawn."""
        harness.run_short(harness.offer(), num_nodes=2)
        lease = self.acquire(harness, num_nodes=3)
        harness.refuse_removal(num_calls=2)
        harness.cloud.release(lease.id)
        harness.run_short(harness.offer(), num_nodes=8)
        harness.advance(WAIT_S)
        assert harness.billed() == frozenset()
        assert list(harness.reopen().find_all()) == []


class TestGcpQueue(QueuingContract):
    """Flex start."""

    @pytest.fixture
    def harness(self) -> Iterator[GcpCloudHarness]:
        harness = GcpCloudHarness(queued_shapes=[SHAPE])
        yield harness
        harness.close()


class TestGcpTpus(QueuingContract):
    """Queued resources."""

    @pytest.fixture
    def harness(self) -> Iterator[TpuHarness]:
        harness = TpuHarness()
        yield harness
        harness.close()
