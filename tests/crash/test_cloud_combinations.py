"""A run that rents from each cloud, shot at each effect point: nothing is billed in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_cloud, crash_combos
from tests.support.crash_combos import Combination

NUM_SMOKE = 40


@pytest.mark.parametrize(
    "combination", crash_combos.chosen("cloud", crash_cloud.combinations, smoke=NUM_SMOKE), ids=str
)
def test_run_that_rents_is_shot(combination: Combination, record_property: Callable[[str, object], None]) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_cloud.run(combination).plain())
