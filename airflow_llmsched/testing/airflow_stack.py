"""A real, isolated Airflow on this machine: scheduler, dag-processor, triggerers and api-server under one folder.

For the demo and the integration tests. Imports no Airflow: it only starts Airflow's own commands, with an environment
in which nothing of the user's Airflow shows. What ends it is in ``testing.keeper``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from airflow_llmsched.errors import CouldNotLookError, LaunchError, LlmschedError
from airflow_llmsched.testing.airflow_client import AirflowClient
from airflow_llmsched.testing.keeper import GRACE_S, ProcessId, end_sessions, kill_sessions, pause, resume

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
"""What every stack has. Further triggerers are called ``triggerer-2``, ``triggerer-3`` and so on."""
USERNAME = "admin"
MARKER = "LLMSCHED_STACK"
"""Environment variable that every process of a stack carries, gangs that its tasks launched included."""

_LOCK_LIMIT_S = 60
"""How long a component waits for another to be done writing: a scheduler that waited in vain ends. SQLite: 5 s.

Not so the api-server, whose callers try again: all its threads may wait for one that has no thread left to commit in.
"""

_PROBE_LIMIT_S = 5.0

_HEALTH_KEY = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
_LOG_TAIL_LINES = 40
_POLL_S = 0.25


class AirflowStack:
    """One Airflow under ``home``. Use as a context manager, or ``start()`` and ``stop()``.

    Args:
        home: the AIRFLOW_HOME; created; holds database, logs and passwords, and may be used again later.
        dags_folder: where the DAG files are.
        environment: settings on top of ours, e.g. connections or ``AIRFLOW__...`` overrides.
        num_triggerers: how many triggerers share the deferred tasks.
        component_environment: settings on top of those, by component: a triggerer's capacity or limits, for instance.
        end_gangs: whether ending the stack also ends gangs that its tasks launched, which otherwise outlive it.
        ready_limit_s: how long ``start`` waits for all components.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        num_triggerers: int = 1,
        component_environment: Mapping[str, Mapping[str, str]] | None = None,
        end_gangs: bool = False,
        ready_limit_s: float = 120.0,
    ) -> None:
        self.home = home.resolve()
        self.dags_folder = dags_folder.resolve()
        self.username = USERNAME
        self.password = secrets.token_urlsafe(12)
        self.triggerers = ("triggerer", *(f"triggerer-{number}" for number in range(2, num_triggerers + 1)))
        self.components = (*(each for each in COMPONENTS if each != "triggerer"), *self.triggerers)
        self._extra = dict(environment or {})
        self._own_extra = dict(component_environment or {})
        if unknown := sorted(set(self._own_extra) - set(self.components)):
            raise LlmschedError(
                f"an Airflow stack of {', '.join(self.components)} has no component {unknown[0]}: see num_triggerers"
            )
        self._end_gangs = end_gangs
        self._ready_limit_s = ready_limit_s
        self._keeper: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._client: AirflowClient | None = None

    def __enter__(self) -> Self:
        """Start, and return the stack."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def url(self) -> str:
        """Address of the web UI and REST API."""
        if self._url is None:
            raise LlmschedError("the Airflow stack has not been started: call start() or use it in a with statement")
        return self._url

    @property
    def client(self) -> AirflowClient:
        """A REST client that is logged in as the stack's only user."""
        if self._client is None:
            self._client = AirflowClient(base_url=self.url, username=self.username, password=self.password)
        return self._client

    def start(self) -> Self:
        """Bring the database up to date, start the components and return once all are healthy.

        Raises:
            LaunchError: another stack runs under this home, or a component ended or was not healthy in time; nothing
                is left running, and the message has the end of its log.
        """
        if (running := running_stack(self.home)) is not None:
            raise LaunchError(
                f"an Airflow stack already runs under {self.home} ({running['info']['url']}, keeper pid "
                f"{running['keeper']['pid']}): stop it first"
            )
        ports = _free_ports(2 + len(self.triggerers))
        self._url = f"http://127.0.0.1:{ports[0]}"
        environment = self._environment(ports[:3])
        self._write_folder()
        self._migrate(environment)
        self._start_keeper(environment, self._own_environment(ports[2:]))
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every component and all their processes. Returns when none is left; idempotent."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._keeper is not None:
            self._keeper.send_signal(signal.SIGTERM)
            self._keeper.wait()
            self._keeper = None

    def restart(self, name: str) -> int:
        """End one of ``components`` by SIGTERM, unless it was killed, start it again, and return its new pid.

        Raises:
            LlmschedError: this object does not own a running stack, or the component has no new process in time.
        """
        keeper = self._keeper
        if keeper is None or keeper.stdin is None:
            raise LlmschedError(f"cannot restart {name}: this object does not own a running stack; start() one")
        before = self.component_pid(name)
        keeper.stdin.write(f"restart {name}\n".encode())
        keeper.stdin.flush()
        deadline_s = time.monotonic() + 3 * GRACE_S
        while (pid := self.component_pid(name)) == before:
            if time.monotonic() > deadline_s:
                raise LlmschedError(f"Airflow's {name} was not restarted within {3 * GRACE_S:.0f} s")
            time.sleep(_POLL_S)
        return pid

    def pause(self, name: str) -> None:
        """Freeze one of ``components`` with every process of its session, as SIGSTOP or a stalled machine would.

        Not in the middle of a transaction: with SQLite, unlike a database server, nobody else could write then.
        """
        leader = self.component_pid(name)
        pause([leader])
        while not self._can_write():
            os.kill(leader, signal.SIGCONT)
            time.sleep(_POLL_S / 10)
            pause([leader])

    def resume(self, name: str) -> None:
        """Let what ``pause`` froze go on."""
        resume([self.component_pid(name)])

    def kill(self, name: str) -> None:
        """Kill one of ``components`` hard, with every process of its session; ``restart`` starts it anew."""
        kill_sessions([self.component_pid(name)])

    def triggerer_of(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        """Return the name of the triggerer that Airflow has given a deferred task to and that has begun with it.

        None when the task is not deferred, or its triggerer has not begun or has ended. Airflow does not tell where a
        job runs, but a triggerer holds the log of each of its triggers open, and its job's number is in the name.
        """
        job = self.client.task_instance(dag_id, run_id, task_id)["triggerer_job"]
        if job is None:
            return None
        log = f".trigger.{job['id']}.log"
        return next((name for name in self.triggerers if _has_open(self.component_pid(name), log)), None)

    def detach(self) -> dict[str, Any]:
        """Let the stack live on after this process. Returns its state; ``stop_running(home)`` ends it later."""
        keeper = self._keeper
        state = running_stack(self.home)
        if keeper is None or keeper.stdin is None or state is None:
            raise LlmschedError("there is no running Airflow stack to detach from")
        keeper.stdin.write(b"detach\n")
        keeper.stdin.flush()
        self._keeper = None
        return state

    @property
    def keeper_pid(self) -> int:
        """Pid of the process that keeps the stack: SIGTERM to it ends everything."""
        pid: int = self._state()["keeper"]["pid"]
        return pid

    def component_pid(self, name: str) -> int:
        """Return the pid of one of ``components``; its process group and session have the same number."""
        pid: int = self._state()["components"][name]["pid"]
        return pid

    def log_path(self, name: str) -> Path:
        """Return the file to which a component writes its output."""
        return self.home / "stack" / f"{name}.log"

    def _environment(self, ports: list[int]) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            # The first would let a parent's Airflow show through; the second costs every process seconds of compiling.
            if not name.startswith(("AIRFLOW_", "_AIRFLOW_")) and name != "PYTHONDONTWRITEBYTECODE"
        }
        marker = f"{self.home}:{secrets.token_hex(8)}"
        return inherited | settings(self.home, self.dags_folder, ports) | {MARKER: marker} | self._extra

    def _own_environment(self, trigger_log_ports: Sequence[int]) -> dict[str, dict[str, str]]:
        """Return what differs by component: each triggerer serves its logs on a port of its own."""
        own = {
            name: {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(port)}
            for name, port in zip(self.triggerers, trigger_log_ports, strict=True)
        }
        own["api-server"] = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_database_path(self.home)}"}
        return {name: {**own.get(name, {}), **self._own_extra.get(name, {})} for name in self.components}

    def _write_folder(self) -> None:
        (self.home / "stack").mkdir(parents=True, exist_ok=True)
        passwords = _passwords_path(self.home)
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({self.username: self.password}))
        for name in self.components:
            self.log_path(name).unlink(missing_ok=True)

    def _migrate(self, environment: Mapping[str, str]) -> None:
        done = subprocess.run(
            [*_AIRFLOW, "db", "migrate"], env=dict(environment), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_TAIL_LINES:])
            raise LaunchError(f"airflow db migrate ended with {done.returncode} under {self.home}:\n{tail}")

    def _start_keeper(self, environment: Mapping[str, str], own: Mapping[str, Mapping[str, str]]) -> None:
        spec_path = self.home / "stack" / "keeper.json"
        spec = {
            "state_path": str(_state_path(self.home)),
            "components": {
                name: {
                    "argv": [*_AIRFLOW, *_arguments(name)],
                    "log_path": str(self.log_path(name)),
                    "environment": own[name],
                }
                for name in self.components
            },
            "info": {"url": self.url, "username": self.username},
            "sweep": f"{MARKER}={environment[MARKER]}" if self._end_gangs else None,
        }
        spec_path.write_text(json.dumps(spec))
        with (self.home / "stack" / "keeper.log").open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "airflow_llmsched.testing.keeper", str(spec_path)],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C meant for the owner must not reach it: the owner stops in order
            )

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + self._ready_limit_s
        while waiting := self._unready():
            self._raise_if_ended()
            if time.monotonic() > deadline_s:
                raise LaunchError(
                    f"Airflow's {waiting[0]} was not healthy after {self._ready_limit_s:.0f} s; "
                    f"its log ends:\n{self._log_tail(waiting[0])}"
                )
            time.sleep(_POLL_S)

    def _can_write(self) -> bool:
        with contextlib.closing(sqlite3.connect(_database_path(self.home), timeout=_PROBE_LIMIT_S)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            database.rollback()
        return True

    def _unready(self) -> list[str]:
        try:
            health = self.client.health()
            waiting = [name for name, key in _HEALTH_KEY.items() if (health.get(key) or {}).get("status") != "healthy"]
            if waiting or len(self.triggerers) == 1:
                return waiting
            # The health page knows only the newest triggerer.
            return [*self.triggerers[self.client.num_jobs("TriggererJob") :]]
        except CouldNotLookError:
            return ["api-server"]

    def _raise_if_ended(self) -> None:
        if self._keeper is None or self._keeper.poll() is not None:
            log = (self.home / "stack" / "keeper.log").read_text()
            raise LaunchError(f"the keeper of the Airflow stack under {self.home} ended:\n{log}")
        for name, component in self._state().get("components", {}).items():
            if component["exit_code"] is not None:
                raise LaunchError(
                    f"Airflow's {name} ended with {component['exit_code']}; its log ends:\n{self._log_tail(name)}"
                )

    def _state(self) -> dict[str, Any]:
        return _read_state(self.home) or {}

    def _log_tail(self, name: str) -> str:
        try:
            return "\n".join(self.log_path(name).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        except FileNotFoundError:
            return ""


def running_stack(home: Path) -> dict[str, Any] | None:
    """Return the state of the stack that runs under ``home``, or None. What one killed hard left behind counts."""
    state = _read_state(home)
    if state is None:
        return None
    processes = [state["keeper"], *state["components"].values()]
    alive = any(ProcessId(pid=each["pid"], started_at_s=each["started_at_s"]).alive() for each in processes)
    return state if alive else None


def stop_running(home: Path) -> bool:
    """End the stack that runs under ``home``, whoever started it; return whether there was one."""
    state = running_stack(home)
    if state is None:
        return False
    keeper = ProcessId(pid=state["keeper"]["pid"], started_at_s=state["keeper"]["started_at_s"])
    if keeper.alive():
        os.kill(keeper.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + 3 * GRACE_S
        while keeper.alive() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    leaders = [
        each["pid"]
        for each in state["components"].values()
        if ProcessId(pid=each["pid"], started_at_s=each["started_at_s"]).alive()
    ]
    end_sessions(leaders)
    return True


def settings(home: Path, dags_folder: Path, ports: list[int]) -> dict[str, str]:
    """Airflow's settings for a small, quick and private instance. ``ports``: api-server, worker logs, trigger logs."""
    api, worker_logs, trigger_logs = ports
    url = f"http://127.0.0.1:{api}"
    values = {
        ("api", "base_url"): url,
        ("api", "expose_stacktrace"): True,  # its one user starts it on this machine, and is told why it failed
        ("api", "host"): "127.0.0.1",
        ("api", "port"): api,
        ("api", "secret_key"): secrets.token_hex(16),
        ("api", "workers"): 1,
        ("api_auth", "jwt_secret"): secrets.token_hex(32),
        ("core", "dagbag_import_timeout"): 120,
        ("core", "dags_are_paused_at_creation"): False,
        ("core", "dags_folder"): dags_folder,
        ("core", "execution_api_server_url"): f"{url}/execution/",
        ("core", "executor"): "LocalExecutor",
        ("core", "fernet_key"): base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        ("core", "hostname_callable"): "socket.gethostname",
        ("core", "load_examples"): False,
        ("core", "parallelism"): 4,
        ("core", "simple_auth_manager_all_admins"): False,
        ("core", "simple_auth_manager_passwords_file"): _passwords_path(home),
        ("core", "simple_auth_manager_users"): f"{USERNAME}:admin",
        ("dag_processor", "dag_file_processor_timeout"): 150,
        ("dag_processor", "min_file_process_interval"): 10,
        ("dag_processor", "parsing_processes"): 1,
        ("dag_processor", "refresh_interval"): 10,
        ("database", "sql_alchemy_conn"): f"sqlite:///{_database_path(home)}?timeout={_LOCK_LIMIT_S}",
        ("llmsched", "min_deferral"): 3,  # with what follows from [workers] min_heartbeat_interval
        ("logging", "base_log_folder"): home / "logs",
        ("logging", "colored_console_log"): False,
        ("logging", "trigger_log_server_port"): trigger_logs,
        ("logging", "worker_log_server_port"): worker_logs,
        ("scheduler", "scheduler_idle_sleep_time"): 0.5,
        ("usage_data_collection", "enabled"): False,
        ("workers", "execution_api_timeout"): 30,
        ("workers", "min_heartbeat_interval"): 1,
    }
    settings_ = {f"AIRFLOW__{section.upper()}__{key.upper()}": str(value) for (section, key), value in values.items()}
    return settings_ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONFIG": str(home / "airflow.cfg"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


_AIRFLOW = (sys.executable, "-m", "airflow")


def _arguments(component: str) -> list[str]:
    if component == "api-server":
        return [component, "--apps", "all"]
    return ["triggerer"] if component.startswith("triggerer-") else [component]


def _has_open(pid: int, suffix: str) -> bool:
    try:
        return any(file.path.endswith(suffix) for file in psutil.Process(pid).open_files())
    except psutil.NoSuchProcess:
        return False


def _state_path(home: Path) -> Path:
    return home / "stack" / "state.json"


def _database_path(home: Path) -> Path:
    return home / "airflow.db"


def _passwords_path(home: Path) -> Path:
    return home / "passwords.json"


def _read_state(home: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(_state_path(home).read_text())
    except FileNotFoundError:
        return None
    return state


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held until the last is known, so that they differ."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
