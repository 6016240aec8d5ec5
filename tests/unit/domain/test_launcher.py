from __future__ import annotations

import pytest

from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.specs.schema import LauncherBlock


@pytest.mark.parametrize("launcher", Launcher)
def test_a_spec_may_name_every_launcher_there_is(launcher: Launcher) -> None:
    assert LauncherBlock.model_validate({"kind": launcher.value}).kind == launcher
