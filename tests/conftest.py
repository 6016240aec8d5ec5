"""Sets the environment before anything can import Airflow; costs nothing for tests that do not touch it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).resolve().parent.parent
_HOME = Path(tempfile.mkdtemp(prefix="llmsched-tests-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

# Whatever Airflow the developer has set up must neither show in the tests nor be touched by them.
for _name in [name for name in os.environ if name.startswith(("AIRFLOW_", "_AIRFLOW_", "LLMSCHED_"))]:
    del os.environ[_name]
os.environ.update(
    {
        "AIRFLOW_HOME": str(_HOME),
        "AIRFLOW_CONFIG": str(_HOME / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(_CHECKOUT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the checkout."""
    return _CHECKOUT


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """A fresh Airflow metadata database, made once per session (2 to 3 s); returns AIRFLOW_HOME."""
    from airflow.utils.db import initdb

    initdb()
    return _HOME
