"""Says what the crash harness draws by, and sums up at the end what its combinations came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from airflow_llmsched.effect_points import listen
from tests.support import crash_combos, crash_local


def pytest_report_header() -> str:
    """Name the seed: with it and a combination's name, everything can be repeated."""
    return f"crash harness: seed {crash_combos.seed()} (make test-crash SEED=...)"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    found = [value for each in reports for name, value in each.user_properties if name == crash_combos.PROPERTY]
    if not found:
        return
    terminalreporter.section("crash harness")
    for line in _table(found):
        terminalreporter.write_line(line)


def pytest_sessionfinish() -> None:
    """Leave nothing in the temporary folder."""
    crash_local.forget_recording()


def _table(found: Iterable[dict[str, Any]]) -> Iterable[str]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in found:
        rows[each["engine"], each["follow_up"]].append(each)
        rows[each["engine"], "all"].append(each)
    yield f"{'engine':<10}{'follow-up':<14}{'combinations':>13}{'max alive':>11}{'alive after':>13}{'steps beyond':>14}"
    for (engine, follow_up), row in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] == "all", item[0])):
        worst = [max(each[name] for each in row) for name in ("max_alive", "alive_after", "steps_beyond")]
        yield f"{engine:<10}{follow_up:<14}{len(row):>13}{worst[0]:>11}{worst[1]:>13}{worst[2]:>14}"
    yield "steps beyond: done again although a complete checkpoint had them"


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterable[None]:
    """Leave no listener behind, whatever becomes of a test."""
    yield
    listen(None)
