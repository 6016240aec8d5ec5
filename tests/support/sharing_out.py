"""Which of several test processes runs what: whole files, and all that need the one real Airflow in one process.

And where each begins to collect: every process collects every test, and pytest rewrites the assertions of each file that
it has no bytecode of, which in a fresh checkout is all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

_WITH_AIRFLOW = "with Airflow"
_STACK_MARK = "pytest.mark.stack"


class WholeFilesAndOneAirflow(LoadFileScheduling):
    """Give each process whole files, so that what a file prepares is prepared once; and one process every file with
    tests of the ``stack`` fixture, as a real Airflow takes 15 s to start and then mostly waits."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return _WITH_AIRFLOW if needs_airflow(self.config.rootpath / path) else path


@functools.cache
def needs_airflow(path: Path) -> bool:
    """Whether a test file has tests of a real Airflow. By its text: who shares tests out has imported none."""
    return _STACK_MARK in path.read_text()


def turned(folders: Sequence[str], *, number: int, of: int) -> list[str]:
    """Return all test files below ``folders`` from where test process ``number`` begins: another file for each.

    Side by side they would rewrite the same file at the same time; so each finds most of them done by the others.
    """
    files = sorted(str(path) for folder in folders for path in Path(folder).rglob("test_*.py"))
    first = len(files) * number // of
    return files[first:] + files[:first]
