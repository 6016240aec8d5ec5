"""What `make bench-engines` measures on Slurm, in small: the figures come about, and not at the price of more calls."""

from __future__ import annotations

import pytest

from tests.bench.engines_slurm import status_cost

pytestmark = pytest.mark.server


def test_status_of_many_gangs_is_one_call_of_slurms() -> None:
    cost = status_cost(num_gangs=60, num_looks=3)
    assert cost.num_calls == 1
    assert 0 < cost.cpu_s <= cost.worst_cpu_s
    assert cost.wall_s > 0
