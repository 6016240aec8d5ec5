"""Test-only plugin of Airflow: has its processes shot where ``tests.support.shooting`` was told to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow.plugins_manager import AirflowPlugin

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from airflow_llmsched.effect_points import listen
from tests.support.shooting import RANGE, Gunman

# Workers and triggerers are forked from processes that have loaded their plugins, or load them themselves.
listen(Gunman(Path(os.environ[RANGE])))


class ShootingPlugin(AirflowPlugin):
    name = "llmsched_shooting"
