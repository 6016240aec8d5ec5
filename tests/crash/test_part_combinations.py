"""Tasks and calls that leave something for others, shot at each effect point: whole at any time, right in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_combos, crash_parts
from tests.support.crash_combos import Combination

SMOKE = (
    "part:channel:channel.directory.write:after:1:retried",
    "part:evaluate:run_files.delete:after:1:retried",
    "part:interruption:leases.order_checkpoint:after:1:thawed",
    "part:late_append:journal.take_back:after:1:thawed",
    "part:market:market.write:after:1:retried",
    "part:open:run_files.write:before:1:cleared",
    "part:plan:run_files.write:before:1:retried",
    "part:release:local.abandon.build:before:1:retried",
    "part:report:report.write:before:1:thawed",
    "part:stage:staging.write:before:1:thawed",
)
"""Named, so that nothing has to be played to know them: `make test-crash` draws from all."""


@pytest.mark.parametrize(
    "combination", crash_combos.chosen("part", crash_parts.combinations, smoke=SMOKE, share_ratio=0.5), ids=str
)
def test_part_of_a_run_that_is_shot(combination: Combination, record_property: Callable[[str, object], None]) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_parts.run(combination).plain())
