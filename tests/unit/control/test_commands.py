"""Commands are plain values: what the machine returns can be compared, and every one has a performer."""

from __future__ import annotations

from typing import get_args

from airflow_llmsched.control import commands as cmd
from tests.support.sim_house import SimHouse


def test_every_command_but_the_two_waits_can_be_performed() -> None:
    effects = SimHouse().driver()._effects
    assert set(effects._table) == set(get_args(cmd.Command)) - {cmd.WatchGang, cmd.WaitForCapacity}


def test_equal_commands_are_equal() -> None:
    assert cmd.WaitForCapacity(until_s=1.0) == cmd.WaitForCapacity(until_s=1.0)
    assert cmd.WaitForCapacity(until_s=1.0) != cmd.WaitForCapacity(until_s=2.0)
