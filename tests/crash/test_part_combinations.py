"""Tasks and calls that leave something for others, shot at each effect point: whole at any time, right in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_combos, crash_parts
from tests.support.crash_combos import Combination

NUM_SMOKE = 40


@pytest.mark.parametrize(
    "combination", crash_combos.chosen("part", crash_parts.combinations, smoke=NUM_SMOKE, share_ratio=0.5), ids=str
)
def test_part_of_a_run_that_is_shot(combination: Combination, record_property: Callable[[str, object], None]) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_parts.run(combination).plain())
