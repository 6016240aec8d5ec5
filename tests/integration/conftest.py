"""One real Airflow per test session: starting it costs about 15 s. Tests that use it share one xdist group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.testing.airflow_stack import AirflowStack

# A worker that was killed hard is noticed by its silence: after 20 s, not after Airflow's 300 s.
SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    # Beside busy cores, a triggerer that does nothing wrong may wait 0.2 s for its turn.
    # In the environment, where no copy of it gets into Airflow's database.
    "AIRFLOW_VAR_CREDS": '{"token": "hf_TESTsecret123"}',
    "AIRFLOW__TRIGGERER__BLOCKED_MAIN_THREAD_WARNING_THRESHOLD": "0.5",
}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """A running Airflow over ``tests/integration/dags``. Gangs that a failed test left behind end with it."""
    home, dags = tmp_path_factory.mktemp("airflow"), Path(__file__).parent / "dags"
    with AirflowStack(home, dags, environment=SETTINGS, end_gangs=True) as stack:
        yield stack
