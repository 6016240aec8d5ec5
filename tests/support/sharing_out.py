"""Which of several test processes runs what: whole files, and all that need the one real Airflow in one process."""

from __future__ import annotations

import functools
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
