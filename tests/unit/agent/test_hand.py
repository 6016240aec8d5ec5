from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.agent import hand, wire
from airflow_llmsched.agent.spool import read_json

ASKED = [
    " orted",
    "-mca",
    "ess",
    '"env"',
    "-mca",
    "orte_hnp_uri",
    '"94.0;tcp://192.0.2.2:36233;tcp6://[fd00::2]:45355"',
]
DAEMON = ["orted", "-mca", "ess", "env", "-mca", "orte_hnp_uri", "94.0;tcp://192.0.2.2:36233;tcp6://[fd00::2]:45355"]


def test_words_that_mpirun_quoted_for_a_shell_become_an_argument_list() -> None:
    assert hand.daemon_argv(ASKED) == DAEMON


def test_settings_before_the_daemon_are_left_to_its_node() -> None:
    prefixed = ["PATH=/opt/mpi/bin:$PATH", ";", "export", "PATH", ";", "/opt/mpi/bin/orted", "-mca", "ess", '"env"']
    assert hand.daemon_argv(prefixed) == ["/opt/mpi/bin/orted", "-mca", "ess", "env"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(wire.SPOOL, str(tmp_path / "spool"))
    return tmp_path


def test_daemon_is_left_for_the_supervisor_of_its_node(node: Path) -> None:
    assert hand.main(["127.0.1.101", *ASKED]) == 0
    assert read_json(node / "daemons" / "127.0.1.101.json") == {"v": wire.VERSION, "argv": DAEMON}
    assert (node / "daemons").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("argv", [[], ["host"], ["../../etc/x", "orted"]])
def test_wrong_use_is_refused(node: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert hand.main(argv) == 2
    assert "usage" in capsys.readouterr().err
    assert not (node / "daemons").exists()


def test_anything_but_a_daemon_is_refused(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hand.main(["127.0.1.101", "rm", "-r", "/"]) == 1
    assert "orted" in capsys.readouterr().err
    assert not (node / "daemons").exists()
