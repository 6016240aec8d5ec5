"""One real Airflow per test session: starting it costs about 15 s. Tests that use it share one xdist group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.testing.airflow_stack import AirflowStack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """A running Airflow over ``tests/integration/dags``."""
    with AirflowStack(tmp_path_factory.mktemp("airflow"), Path(__file__).parent / "dags") as stack:
        yield stack
