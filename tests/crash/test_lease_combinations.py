"""Runs that rent die at every effect, among faults of the cloud: one pass of the reaper after expiry leaves nothing."""

from __future__ import annotations

import os

import pytest

from tests.support import crash_combos
from tests.support.lease_ordeals import CLOUDS, ordeals

NUM_SMOKE = 40
"""Runs without a budget; with ``BUDGET``, as many as that. A cloud that speaks HTTP gets a fourth of them."""


@pytest.mark.parametrize("cloud", sorted(CLOUDS))
def test_no_machine_is_left_whatever_a_run_died_at(cloud: str) -> None:
    num_runs = int(os.environ.get(crash_combos.BUDGET) or NUM_SMOKE) // (1 if cloud == "sim" else 4)
    tally = ordeals(cloud, num_runs=num_runs, seed=crash_combos.seed())
    assert tally.left == {}
    assert tally.num_deaths > 0
    assert tally.num_billed > 0 or num_runs < 40, "the reaper had nothing to do: the harness has lost its teeth"
