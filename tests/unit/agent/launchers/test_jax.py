from __future__ import annotations

from airflow_llmsched.agent.meeting import Meeting
from tests.support.launching import starts


def test_each_process_is_told_what_jax_reads() -> None:
    started = starts("n1", launcher="jax", meeting=Meeting("fd00::1", 20123))
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS")
    assert [[start.environ[name] for name in names] for start in started] == [
        ["[fd00::1]:20123", "4", "2", "0"],
        ["[fd00::1]:20123", "4", "3", "1"],
    ]
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK")
    assert [[start.environ[name] for name in names] for start in started] == [
        ["4", "2", "0", "2"],
        ["4", "3", "1", "3"],
    ]
    assert all("OMPI_MCA_orte_hnp_uri" in start.environ for start in started)


def test_on_tpus_the_runtime_and_not_jax_picks_the_chip() -> None:
    nodes = [{"node": "n0", "ranks": [0, 1, 2, 3], "slots": [0, 1, 2, 3]}]
    ports = {"n0": [20001, 20002, 20003, 20004]}
    started = starts("n0", launcher="jax", nodes=nodes, ports=ports, devices={"vendor": "google"})
    assert all("JAX_LOCAL_DEVICE_IDS" not in start.environ for start in started)
    assert [start.environ["TPU_VISIBLE_CHIPS"] for start in started] == ["0", "1", "2", "3"]
