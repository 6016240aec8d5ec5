"""Our section of Airflow's configuration."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk.configuration import conf

SECTION = "llmsched"


def state_root() -> str:
    """Return the deployment's state root, an absolute path."""
    configured = conf.get(SECTION, "state_root", fallback="")
    home = os.environ.get("AIRFLOW_HOME", "~/airflow")
    return str(Path(configured or f"{home}/llmsched").expanduser().resolve())


def min_deferral_s() -> float:
    """Return how long a task stays deferred at least, in seconds (see ``provider.settling``)."""
    return float(conf.getfloat(SECTION, "min_deferral", fallback=7.0))


def channel_uri() -> str:
    """Return the bucket below which agents report and take orders; empty for the run's folder below the state root."""
    return str(conf.get(SECTION, "channel_uri", fallback="")).rstrip("/")


def handoff_limit_s() -> float:
    """Return how long a gang may run unwatched between a trigger's event and the worker that acts on it, in seconds."""
    return float(conf.getfloat(SECTION, "handoff_limit", fallback=1800.0))


def measured_links_limit_s() -> float:
    """Return for how long what checks of nodes measured of links counts, in seconds; 0: not at all."""
    return float(conf.getfloat(SECTION, "measured_links_limit", fallback=604_800.0))


def fleet_file() -> str:
    """Return the path of the deployment's fleet file; empty where it has none."""
    return str(conf.get(SECTION, "fleet_file", fallback=""))
