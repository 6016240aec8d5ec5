from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_engine import LocalHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def test_node_is_down_until_it_returns(harness: LocalHarness) -> None:
    with harness.client.exclusive():
        harness.client.take_down("n0", {"return_at_s": 50.0, "reason": "preempted"})  # type: ignore[arg-type]
    down = harness.client.downtime("n0", now_s=49.0)  # type: ignore[arg-type]
    assert down is not None
    assert down["reason"] == "preempted"
    assert harness.client.downtime("n0", now_s=50.0) is None  # type: ignore[arg-type]
    assert harness.client.downtime("n1", now_s=0.0) is None  # type: ignore[arg-type]
