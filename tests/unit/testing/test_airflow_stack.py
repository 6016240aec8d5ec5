from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from airflow_llmsched.errors import LaunchError, LlmschedError
from airflow_llmsched.testing import airflow_stack
from airflow_llmsched.testing.airflow_stack import AirflowStack, running_stack, settings, stop_running
from airflow_llmsched.testing.keeper import ProcessId


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def _write_state(home: Path, keeper: ProcessId, components: dict[str, ProcessId]) -> None:
    (home / "stack").mkdir(parents=True)
    state = {
        "keeper": {"pid": keeper.pid, "started_at_s": keeper.started_at_s},
        "components": {
            name: {"pid": each.pid, "started_at_s": each.started_at_s, "exit_code": None}
            for name, each in components.items()
        },
        "info": {"url": "http://127.0.0.1:1234", "username": "admin"},
    }
    (home / "stack" / "state.json").write_text(json.dumps(state))


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


GONE = ProcessId(pid=2**22 + 1, started_at_s=0.0)


def test_settings_keep_the_instance_private(home):
    values = settings(home, home / "dags", [1, 2, 3])
    assert values["AIRFLOW_HOME"] == str(home)
    assert values["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert values["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    assert values["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert values["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{home}/airflow.db?timeout=60"


def test_every_start_has_secrets_of_its_own(home):
    one, other = (settings(home, home / "dags", [1, 2, 3]) for _ in range(2))
    for name in ("AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__CORE__FERNET_KEY"):
        assert one[name] != other[name]


def test_nothing_of_the_users_airflow_shows(home, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", "/home/user/airflow")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_AWS", "aws://key:secret@")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = AirflowStack(home, home, environment={"EXTRA": "1"})._environment([1, 2, 3])
    assert environment["AIRFLOW_HOME"] == str(home)
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert environment["EXTRA"] == "1"
    assert "AIRFLOW_CONN_AWS" not in environment
    assert "PYTHONDONTWRITEBYTECODE" not in environment


def test_further_triggerers_have_names_log_ports_and_settings_of_their_own(home):
    own = {"triggerer-2": {"AIRFLOW__TRIGGERER__CAPACITY": "5"}}
    stack = AirflowStack(home, home, num_triggerers=3, component_environment=own)
    assert stack.components == ("api-server", "scheduler", "dag-processor", "triggerer", "triggerer-2", "triggerer-3")
    port = "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT"
    assert stack._own_environment([1, 2, 3]) == {
        "api-server": {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db"},
        "scheduler": {},
        "dag-processor": {},
        "triggerer": {port: "1"},
        "triggerer-2": {port: "2", "AIRFLOW__TRIGGERER__CAPACITY": "5"},
        "triggerer-3": {port: "3"},
    }
    assert [airflow_stack._arguments(name) for name in stack.triggerers] == [["triggerer"]] * 3


def test_settings_for_a_component_that_there_is_none_of_are_refused(home):
    with pytest.raises(LlmschedError, match=r"no component triggerer-2.*num_triggerers"):
        AirflowStack(home, home, component_environment={"triggerer-2": {}})


def test_a_component_is_not_frozen_while_it_holds_the_databases_lock(home, monkeypatch):
    monkeypatch.setattr(airflow_stack, "_PROBE_LIMIT_S", 0.05)
    home.mkdir()
    writer = (
        "import sqlite3, sys, time; database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute('CREATE TABLE t (x)')\n"
        "while True:\n"
        "    database.execute('BEGIN IMMEDIATE'); print('in', flush=True); time.sleep(0.3)\n"
        "    database.execute('ROLLBACK'); time.sleep(0.2)\n"
    )
    argv = [sys.executable, "-c", writer, str(home / "airflow.db")]
    component = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    _write_state(home, ProcessId.of(os.getpid()), {"triggerer": ProcessId.of(component.pid)})
    try:
        assert component.stdout.readline() == "in\n"
        stack = AirflowStack(home, home)
        stack.pause("triggerer")
        assert stack._can_write()
        assert psutil.Process(component.pid).status() == psutil.STATUS_STOPPED
    finally:
        component.kill()
        component.wait()


def test_free_ports_differ():
    assert len(set(airflow_stack._free_ports(8))) == 8


def test_the_password_is_readable_by_its_owner_alone(home):
    stack = AirflowStack(home, home)
    stack._write_folder()
    path = home / "passwords.json"
    assert json.loads(path.read_text()) == {"admin": stack.password}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_stack_that_was_not_started_says_so(home):
    with pytest.raises(LlmschedError, match=r"call start\(\)"):
        _ = AirflowStack(home, home).url
    with pytest.raises(LlmschedError, match="no running Airflow stack"):
        AirflowStack(home, home).detach()
    with pytest.raises(LlmschedError, match="does not own a running stack"):
        AirflowStack(home, home).restart("triggerer")


def test_no_state_file_and_a_state_file_of_the_dead_both_mean_that_none_runs(home):
    assert running_stack(home) is None
    _write_state(home, GONE, {"scheduler": GONE})
    assert running_stack(home) is None
    assert stop_running(home) is False


def test_a_second_stack_under_the_same_home_is_refused_with_the_address_of_the_first(home):
    me = ProcessId.of(os.getpid())
    _write_state(home, me, {})
    with pytest.raises(LaunchError, match=rf"already runs .*http://127.0.0.1:1234, keeper pid {me.pid}"):
        AirflowStack(home, home).start()


def test_stop_running_ends_components_whose_keeper_was_killed(home):
    component = _sleeper()
    _write_state(home, GONE, {"scheduler": ProcessId.of(component.pid)})
    assert stop_running(home) is True
    assert component.wait(timeout=5) == -signal.SIGTERM


def test_stop_running_leaves_a_process_that_only_inherited_the_number(home):
    stranger = _sleeper()
    try:
        _write_state(home, GONE, {"scheduler": ProcessId(pid=stranger.pid, started_at_s=1.0)})
        assert stop_running(home) is False
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_database_that_cannot_be_made_is_reported_with_the_end_of_its_output(home):
    stack = AirflowStack(home, home)
    broken = dict(os.environ) | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////no/such/folder/airflow.db"}
    with pytest.raises(LaunchError, match=r"airflow db migrate ended with 1 .*(?s:.*)unable to open database file"):
        stack._migrate(broken)


def test_a_component_that_ends_during_start_up_fails_the_start_with_its_log(home, monkeypatch):
    monkeypatch.setattr(AirflowStack, "_migrate", lambda *_: None)
    monkeypatch.setattr(
        airflow_stack, "_AIRFLOW", (sys.executable, "-c", "print('no such option'); raise SystemExit(2)")
    )
    stack = AirflowStack(home, home)
    with pytest.raises(LaunchError, match=r"(?s)ended with 2; its log ends:.*no such option"):
        stack.start()
    assert running_stack(home) is None


def test_a_component_that_is_not_healthy_in_time_fails_the_start_and_leaves_nothing_running(home, monkeypatch):
    monkeypatch.setattr(AirflowStack, "_migrate", lambda *_: None)
    monkeypatch.setattr(airflow_stack, "_AIRFLOW", (sys.executable, "-c", "import time; time.sleep(600)"))
    with pytest.raises(LaunchError, match="api-server was not healthy after 1 s"):
        AirflowStack(home, home, ready_limit_s=1.0).start()
    assert running_stack(home) is None
