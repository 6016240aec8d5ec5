from __future__ import annotations

from airflow_llmsched.agent.meeting import Meeting
from tests.support.launching import starts


def test_each_rank_is_started_with_its_place() -> None:
    started = starts("n1", launcher="plain")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [[start.environ[name] for name in names] for start in started] == [
        ["2", "0", "4", "2", "1", "127.0.0.1", "20123"],
        ["3", "1", "4", "2", "1", "127.0.0.1", "20123"],
    ]


def test_nodes_on_machines_of_their_own_meet_at_the_address_of_the_first() -> None:
    started = starts("n1", meeting=Meeting("fd00::1", 20123), launcher="plain")
    assert [start.environ["MASTER_ADDR"] for start in started] == ["fd00::1", "fd00::1"]
