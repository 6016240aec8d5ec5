"""Sets the environment before anything can import Airflow; costs nothing for tests that do not touch it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from tests.support.slurm_cluster import SlurmCluster
    from tests.support.ssh_hosts import SshHosts

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

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

_SERVER_LIMIT_S = 300


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    """Share whole files out to processes in a way of our own: see ``tests.support.sharing_out``."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.sharing_out import WholeFilesAndOneAirflow

    return WholeFilesAndOneAirflow(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were run again (``.ci/run``): those that pass the second time show nothing otherwise."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"{report.nodeid} at first")
        terminalreporter.line(report.longreprtext)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits longest: the tests of a real Airflow, in whose waiting times the others run.

    A test with servers may take longer than others: each of its waits alone has up to 100 s before it says what for.
    """
    items.sort(key=lambda item: item.get_closest_marker("stack") is None)
    for item in items:
        if item.get_closest_marker("server") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SERVER_LIMIT_S))


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


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A real Slurm, started once per session (1 to 2 s). Tests keep to jobs and folders of their own."""
    from tests.support.slurm_cluster import slurm_cluster

    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def machines() -> Iterator[SshHosts]:
    """Eight machines with sshd, started once per session (2 to 3 s). Tests leave each as they found it."""
    from tests.support.ssh_hosts import ssh_hosts

    with ssh_hosts() as hosts:
        yield hosts
