from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import launch
from airflow_llmsched.agent.launchers import mpirun
from airflow_llmsched.agent.rank import placed
from airflow_llmsched.agent.scratch import Scratch
from tests.support.launching import BODY, site, starts


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with an Open MPI on it."""
    for name in ("mpirun", "orted"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return str(tmp_path)


def test_mpirun_is_on_the_first_node_alone_and_places_ranks_by_its_files(path: str) -> None:
    (start,) = starts("n0", {"PATH": path}, launcher="mpirun")
    assert starts("n1", {"PATH": path}, launcher="mpirun") == []
    assert start.argv == [
        f"{path}/mpirun",
        *("--hostfile", "/gang/nodes/n0/hostfile", "--rankfile", "/gang/nodes/n0/rankfile", "-np", "4"),
        *(sys.executable, "-P", "-m", "airflow_llmsched.agent.rank", "--", *BODY["command"]),
    ]
    hostfile, rankfile = (start.files[Path(f"/gang/nodes/n0/{name}")] for name in ("hostfile", "rankfile"))
    assert hostfile == "127.0.1.100 slots=2\n127.0.1.101 slots=2\n"
    cores = mpirun.num_cores()
    all_cores = f"0-{cores - 1}" if cores > 1 else "0"
    assert rankfile.splitlines() == [
        f"rank 0=127.0.1.100 slot={all_cores}",
        f"rank 1=127.0.1.100 slot={all_cores}",
        f"rank 2=127.0.1.101 slot={all_cores}",
        f"rank 3=127.0.1.101 slot={all_cores}",
    ]


def test_nodes_are_known_by_their_addresses_and_those_of_helpers_alone_are_left_out(path: str) -> None:
    nodes: list[dict[str, Any]] = [
        {"node": "n0", "ranks": [0, 1, 2], "slots": [], "address": "10.0.0.1"},
        {"node": "n1", "ranks": [3], "slots": [], "address": "fd00::2"},
        {"node": "n2", "ranks": [], "slots": [], "address": "10.0.0.3"},
    ]
    (start,) = starts("n0", {"PATH": path}, launcher="mpirun", nodes=nodes)
    assert start.files[Path("/gang/nodes/n0/hostfile")] == "10.0.0.1 slots=3\nfd00::2 slots=1\n"
    assert start.files[Path("/gang/nodes/n0/rankfile")].splitlines()[3].startswith("rank 3=fd00::2 slot=")
    assert "OMPI_MCA_btl" not in start.environ  # machines of their own: Open MPI picks the network


def test_daemons_are_asked_of_supervisors_whatever_scheduler_the_job_is_in(path: str) -> None:
    (start,) = starts("n0", {"PATH": path, "SLURM_JOB_ID": "7"}, launcher="mpirun")
    assert start.environ["OMPI_MCA_plm"] == "rsh"
    assert start.environ["OMPI_MCA_plm_rsh_agent"] == f"{sys.executable} -P -m airflow_llmsched.agent.hand"
    assert start.environ["OMPI_MCA_plm_rsh_no_tree_spawn"] == "1"
    assert "slurm" in start.environ["OMPI_MCA_ras"]
    assert start.environ["OMPI_MCA_odls_base_sigkill_timeout"] == "11"  # not before the grace is over


def test_what_killed_processes_leave_is_in_the_folders_of_their_own_node(path: str, tmp_path: Path) -> None:
    folders = Scratch(disk=tmp_path, memory=tmp_path)
    node = site("n1", {"PATH": path}, launcher="mpirun")._replace(scratch=folders)
    environ = launch.daemon(node, ["orted"]).environ
    in_memory = [f"OMPI_MCA_{name}_backing_directory" for name in ("btl_vader", "osc_sm", "osc_rdma")]
    told = {"OMPI_MCA_orte_tmpdir_base": str(folders.disk), **dict.fromkeys(in_memory, str(folders.memory))}
    assert told.items() <= environ.items()
    # Open MPI hands ranks the settings of mpirun, on the first node: each wrapper puts its own node's in their place.
    given = placed({**environ, "RANK": "2", **dict.fromkeys(told, "/of/the/first/node")})
    assert told.items() <= given.items()
    assert "LLMSCHED_OF_NODE" not in given
    assert environ["OMPI_MCA_plm_rsh_pass_environ_mca_params"] == "0"  # or the first node's would be every node's
    folders.remove()


def test_node_without_such_folders_leaves_open_mpi_its_own(path: str, tmp_path: Path) -> None:
    nowhere = Scratch(disk=tmp_path / "nowhere", memory=tmp_path / "nowhere")
    for scratch in (None, nowhere):
        environ = launch.daemon(site("n1", {"PATH": path})._replace(scratch=scratch), ["orted"]).environ
        assert not any("tmpdir" in name or "backing" in name for name in environ)


def test_what_the_user_sets_wins(path: str) -> None:
    environment = {"OMPI_MCA_btl_tcp_if_include": "eth1", "OMPI_MCA_osc_sm_backing_directory": "/mine"}
    node = site("n0", {"PATH": path}, launcher="mpirun", environment=environment)
    folders = Scratch(disk=Path(path), memory=Path(path))
    (start,) = launch.starts(node._replace(scratch=folders))
    folders.remove()
    assert environment.items() <= start.environ.items()
    assert environment.items() <= placed({**start.environ, "RANK": "0"}).items()


def test_daemon_runs_in_the_environment_of_its_own_node(path: str) -> None:
    started = launch.daemon(site("n1", {"PATH": path}, launcher="mpirun"), ["orted", "-mca", "ess", "env"])
    assert started.argv == [f"{path}/orted", "-mca", "ess", "env"]
    names = ("LLMSCHED_NODE", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [started.environ[name] for name in names] == ["n1", "1", "4", "2", "127.0.0.1", "20123"]


@pytest.mark.parametrize("argv", [[], ["sh", "-c", "orted"], ["/bin/rm"]])
def test_nothing_but_a_daemon_is_started_for_mpirun(path: str, argv: list[str]) -> None:
    with pytest.raises(ValueError, match="instead of its daemon"):
        launch.daemon(site("n1", {"PATH": path}, launcher="mpirun"), argv)


def test_node_without_open_mpi_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mpirun is not on this node's PATH"):
        starts("n0", {"PATH": str(tmp_path)}, launcher="mpirun")


def test_python_in_a_path_with_a_space_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    with pytest.raises(ValueError, match="has a space"):
        starts("n0", {"PATH": path}, launcher="mpirun")
