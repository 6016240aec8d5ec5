from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_llmsched.testing.keeper import (
    GRACE_S,
    ProcessId,
    end_all,
    end_sessions,
    kill_sessions,
    marked,
    members,
    pause,
    resume,
)
from tests.support.waiting import wait_until

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
WITH_CHILD = (
    "import os, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0); "
    "print(child.pid, flush=True); time.sleep(600)"
)


class Kept:
    """A keeper under test, and what it wrote."""

    def __init__(
        self,
        tmp_path: Path,
        scripts: dict[str, str],
        *,
        sweep: str | None = None,
        environments: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self.state_path = tmp_path / "state.json"
        self.tmp_path = tmp_path
        spec = {
            "state_path": str(self.state_path),
            "components": {
                name: {
                    "argv": [sys.executable, "-c", script],
                    "log_path": str(tmp_path / f"{name}.log"),
                    "environment": (environments or {}).get(name, {}),
                }
                for name, script in scripts.items()
            },
            "info": {"url": "here"},
            "sweep": sweep,
        }
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        environment = os.environ | ({} if sweep is None else dict([sweep.split("=")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "airflow_llmsched.testing.keeper", str(tmp_path / "spec.json")],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        wait_until(self.state_path.exists, limit_s=20)
        self.pids = {name: each["pid"] for name, each in self.state()["components"].items()}

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.state_path.read_text())
        return state

    def log(self, name: str) -> str:
        return (self.tmp_path / f"{name}.log").read_text()

    def all_gone(self) -> bool:
        return not members(self.pids.values())


@pytest.fixture
def keep(tmp_path):
    kept: list[Kept] = []

    def start(**kwargs: Any) -> Kept:
        kept.append(Kept(tmp_path, **kwargs))
        return kept[-1]

    yield start
    for each in kept:
        end_sessions([each.process.pid, *each.pids.values()], grace_s=0)
        each.process.wait()


def test_sigterm_ends_every_component_and_the_state_file(keep):
    kept = keep(scripts={"one": "import time; time.sleep(600)", "two": "import time; time.sleep(600)"})
    kept.process.send_signal(signal.SIGTERM)
    assert kept.process.wait(timeout=30) == 0
    assert kept.all_gone()
    assert not kept.state_path.exists()


def test_a_child_in_a_process_group_of_its_own_ends_with_its_component(keep):
    kept = keep(scripts={"parent": WITH_CHILD})
    child = int(wait_until(lambda: kept.log("parent").strip(), limit_s=20))
    kept.process.send_signal(signal.SIGTERM)
    kept.process.wait(timeout=30)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_components_end_when_their_owner_dies_without_a_word(keep):
    kept = keep(scripts={"one": "import time; time.sleep(600)"})
    kept.process.stdin.close()
    assert kept.process.wait(timeout=30) == 0
    assert kept.all_gone()


def test_detached_components_outlive_their_owner(keep):
    kept = keep(scripts={"one": "import time; time.sleep(600)"})
    kept.process.stdin.write(b"detach\n")
    kept.process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        kept.process.wait(timeout=1)
    assert not kept.all_gone()


def test_a_component_is_restarted_on_request_and_the_others_go_on(keep):
    kept = keep(scripts={"one": "import time; time.sleep(600)", "two": "raise SystemExit(3)"})
    wait_until(lambda: kept.state()["components"]["two"]["exit_code"] == 3, limit_s=20)
    kept.process.stdin.write(b"restart two\n")
    kept.process.stdin.flush()
    wait_until(lambda: kept.state()["components"]["two"]["pid"] != kept.pids["two"], limit_s=20)
    kept.pids["two"] = kept.state()["components"]["two"]["pid"]
    wait_until(lambda: kept.state()["components"]["two"]["exit_code"] == 3, limit_s=20)
    assert ProcessId(**{key: kept.state()["components"]["one"][key] for key in ("pid", "started_at_s")}).alive()
    kept.process.stdin.write(b"restart one\n")
    kept.process.stdin.flush()
    wait_until(lambda: not members([kept.pids["one"]]), limit_s=20)
    wait_until(lambda: kept.state()["components"]["one"]["pid"] != kept.pids["one"], limit_s=20)
    kept.pids["one"] = kept.state()["components"]["one"]["pid"]
    assert kept.state()["components"]["one"]["exit_code"] is None


def test_components_end_when_the_keeper_itself_is_killed_hard(keep):
    kept = keep(scripts={"one": "import time; time.sleep(600)"})
    kept.process.kill()
    wait_until(kept.all_gone, limit_s=10)


def test_the_state_tells_who_runs_and_with_what_exit_code_one_ended(keep):
    kept = keep(scripts={"brief": "raise SystemExit(3)", "long": "import time; time.sleep(600)"})
    wait_until(lambda: kept.state()["components"]["brief"]["exit_code"] == 3, limit_s=20)
    state = kept.state()
    assert state["components"]["long"]["exit_code"] is None
    assert state["info"] == {"url": "here"}
    assert ProcessId(**state["keeper"]) == ProcessId.of(kept.process.pid)


def test_a_component_ended_by_a_signal_shows_it_as_a_negative_exit_code(keep):
    kept = keep(scripts={"one": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"})
    wait_until(lambda: kept.state()["components"]["one"]["exit_code"] == -signal.SIGKILL, limit_s=20)


def test_the_sweep_ends_marked_processes_in_sessions_of_their_own(keep):
    detached = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
        "print(child.pid, flush=True); time.sleep(600)"
    )
    entry = f"LLMSCHED_TEST_MARK=sweep-{os.getpid()}"
    kept = keep(scripts={"launcher": detached}, sweep=entry)
    child = int(wait_until(lambda: kept.log("launcher").strip(), limit_s=20))
    assert child in marked(entry)
    kept.process.send_signal(signal.SIGTERM)
    kept.process.wait(timeout=30)
    assert marked(entry) == []


def test_what_ignores_sigterm_gets_sigkill_after_the_grace_period(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline().strip() == "up"
    end_all(lambda: members([process.pid]), grace_s=0.3)
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_a_process_with_the_same_number_but_another_start_is_not_the_same():
    me = ProcessId.of(os.getpid())
    assert me.alive()
    assert not ProcessId(pid=me.pid, started_at_s=me.started_at_s - 3600).alive()


def test_a_paused_session_stands_still_with_its_children_and_goes_on_when_resumed(keep):
    kept = keep(scripts={"parent": WITH_CHILD, "other": "import time; time.sleep(600)"})
    child = int(wait_until(lambda: kept.log("parent").strip(), limit_s=20))
    parent = kept.pids["parent"]
    pause([parent])
    assert {psutil.Process(pid).status() for pid in (parent, child)} == {psutil.STATUS_STOPPED}
    assert psutil.Process(kept.pids["other"]).status() != psutil.STATUS_STOPPED
    resume([parent])
    wait_until(lambda: psutil.STATUS_STOPPED not in {psutil.Process(pid).status() for pid in (parent, child)}, 20)


def test_a_session_that_was_killed_hard_is_gone_with_its_children_and_can_be_restarted(keep):
    kept = keep(scripts={"parent": WITH_CHILD})
    child = int(wait_until(lambda: kept.log("parent").strip(), limit_s=20))
    kill_sessions([kept.pids["parent"]])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    wait_until(lambda: kept.state()["components"]["parent"]["exit_code"] == -signal.SIGKILL, limit_s=20)
    kept.process.stdin.write(b"restart parent\n")
    kept.process.stdin.flush()
    wait_until(lambda: kept.state()["components"]["parent"]["exit_code"] is None, limit_s=20)
    kept.pids["parent"] = kept.state()["components"]["parent"]["pid"]


def test_a_paused_component_ends_by_sigterm_like_any_other(keep):
    kept = keep(scripts={"one": "import time; time.sleep(600)"})
    pause([kept.pids["one"]])
    kept.process.send_signal(signal.SIGTERM)
    assert kept.process.wait(timeout=GRACE_S / 2) == 0
    assert kept.all_gone()


def test_a_component_may_have_settings_of_its_own(keep):
    show = "import os, time; print(os.environ.get('LLMSCHED_TEST_OWN'), flush=True); time.sleep(600)"
    kept = keep(scripts={"one": show, "two": show}, environments={"two": {"LLMSCHED_TEST_OWN": "2"}})
    assert [wait_until(lambda name=name: kept.log(name).strip(), 20) for name in ("one", "two")] == ["None", "2"]
