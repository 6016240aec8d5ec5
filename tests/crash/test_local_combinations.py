"""Real processes on the local engine, shot with SIGKILL at each effect point and followed up in each way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_combos, crash_local
from tests.support.crash_combos import Combination

SMOKE = ("local:faults:local.submit.gang_dir:after:1:retried",)


@pytest.mark.parametrize("combination", crash_combos.chosen("local", crash_local.combinations, smoke=SMOKE), ids=str)
def test_run_shot_on_the_local_engine(combination: Combination, record_property: Callable[[str, object], None]) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_local.run(combination).plain())
