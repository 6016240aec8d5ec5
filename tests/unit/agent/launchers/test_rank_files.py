from __future__ import annotations

from airflow_llmsched.agent.launchers import rank_files


def test_hosts_without_ranks_are_left_out() -> None:
    assert rank_files.hostfile([("a", 2), ("b", 0), ("c", 1)]) == "a slots=2\nc slots=1\n"


def test_each_rank_has_a_line_with_its_host_and_cores() -> None:
    assert rank_files.rankfile([(0, "a", "0-3"), (1, "b", "1:*")]) == "rank 0=a slot=0-3\nrank 1=b slot=1:*\n"
