"""Real processes on the local engine, shot with SIGKILL at each effect point and followed up in each way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_combos, crash_local
from tests.support.crash_combos import Combination

SMOKE = (
    "local:faults:local.submit.gang_dir:after:1:retried",
    "local:faults:local.submit.supervisor:after:1:cleared",
    "local:faults:local.submit.go:before:1:failed",
    "local:faults:run.submit:after:2:late",
    "local:faults:journal.append:before:3:thawed",
    "local:triggerer:watch.renew:before:1:moved",
    "local:killed:local.stop.mark:after:1:retried",
    "local:released:run.cancel_record:after:1:hung",
)


@pytest.mark.parametrize("combination", crash_combos.chosen("local", crash_local.combinations, smoke=SMOKE), ids=str)
def test_run_shot_on_the_local_engine(combination: Combination, record_property: Callable[[str, object], None]) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_local.run(combination).plain())
