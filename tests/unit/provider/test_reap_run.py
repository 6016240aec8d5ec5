from __future__ import annotations

import pytest

from airflow_llmsched.control.reaper import ReaperLimits
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.reap_run import open_lease_reaper, open_reaper


def test_the_reaper_of_a_new_deployment_finds_nothing(state_root):
    assert open_reaper("local", {}, ReaperLimits()).look() == ()
    assert (state_root / "deployment.json").is_file()


def test_options_that_the_engine_does_not_take_are_refused(state_root):
    with pytest.raises(SpecError, match="no_such_option"):
        open_reaper("local", {"no_such_option": 1}, ReaperLimits())


def test_the_reaper_of_a_cloud_is_this_deployments(state_root, sim_cloud):
    reaper = open_lease_reaper("sim", {})
    assert reaper.look() == ()
    assert (state_root / "deployment.json").is_file()
    with pytest.raises(SpecError, match="no_such_option"):
        open_lease_reaper("sim", {"no_such_option": 1})
