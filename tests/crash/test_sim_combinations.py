"""A run on the simulated engine, shot at each effect point and followed up in each way: one gang, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_combos, crash_sim
from tests.support.crash_combos import Combination

NUM_SMOKE = 48


@pytest.mark.parametrize("combination", crash_combos.chosen("sim", crash_sim.combinations, smoke=NUM_SMOKE), ids=str)
def test_run_shot_on_the_simulated_engine(
    combination: Combination, record_property: Callable[[str, object], None]
) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_sim.run(combination).plain())
