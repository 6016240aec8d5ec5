"""Which hosts are proven off, by what, and for whom."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched import effect_points
from airflow_llmsched.domain.gang import GangPhase, GangStatus, LaunchRequest, NodeStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.hosts.fence import Fence, FenceCommand
from airflow_llmsched.engines.hosts.ledger import Ledger
from airflow_llmsched.errors import SpecError
from tests.support.at_once import at_once
from tests.support.waiting import wait_until

H1, H2 = NodeId("h1"), NodeId("h2")
KEY = AttemptKey(run=RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), generation=1, attempt=1)
LOST = GangStatus(
    phase=GangPhase.LOST,
    observed_at_s=200.0,
    nodes=(NodeStatus(node=H1, phase=GangPhase.STOPPED), NodeStatus(node=H2, phase=GangPhase.LOST)),
    unconfirmed_nodes=(H2,),
)


class KilledError(BaseException):
    """The worker is gone."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "engine")


def gone(ledger: Ledger, key: AttemptKey = KEY, *nodes: str) -> str:
    """An attempt of which every host has answered that it went."""
    name = recorded(ledger, key, *nodes)
    ledger.gone(name, {})
    return name


def recorded(ledger: Ledger, key: AttemptKey = KEY, *nodes: str) -> str:
    body = {"nodes": [{"node": node, "slots": [0]} for node in nodes or ("h1", "h2")], "start_limit_s": 60.0}
    with ledger.exclusive():
        assert ledger.create(LaunchRequest(engine="hosts", key=key, body=body))
    return key.name


def fence(tmp_path: Path, ledger: Ledger, script: str = "", **options: Any) -> Fence:
    """A fence whose command notes which hosts it was run for and then does what ``script`` says."""
    program = tmp_path / "fence"
    program.write_text(f'#!/bin/sh\necho "$2" >> {shlex.quote(str(tmp_path / "fenced"))}\n{script}\n')
    program.chmod(0o755)
    return Fence(FenceCommand(argv=(str(program), "--off", "{host}"), **options), ledger, hosts=(H1, H2))


def fenced(tmp_path: Path) -> list[str]:
    path = tmp_path / "fenced"
    return path.read_text().split() if path.exists() else []


def test_unseen_host_is_proven_off_by_the_command_and_the_others_by_themselves(tmp_path: Path, ledger: Ledger) -> None:
    name = gone(ledger)
    assert fence(tmp_path, ledger).prove(name, LOST) == {H1, H2}
    assert fenced(tmp_path) == ["h2"]
    assert ledger.off_at_s(name, H2) == pytest.approx(time.time(), abs=60.0)
    assert ledger.off_at_s(name, H1) is None


def test_without_a_command_what_is_unseen_stays_so(ledger: Ledger) -> None:
    assert Fence(None, ledger, hosts=(H1, H2)).prove(gone(ledger), LOST) == {H1}
    assert Fence(None, ledger, hosts=(H1, H2)).prove(KEY.name, replace(LOST, unconfirmed_nodes=())) == {H1, H2}


def test_command_that_fails_or_does_not_end_proves_nothing(tmp_path: Path, ledger: Ledger) -> None:
    name = gone(ledger)
    assert fence(tmp_path, ledger, "exit 1").prove(name, LOST) == {H1}
    note = tmp_path / "pid"
    slow = fence(tmp_path, ledger, f"sleep 600 & echo $! > {note}; wait", limit_s=1.0)
    assert slow.prove(name, LOST) == {H1}
    left_behind = int(note.read_text())
    wait_until(lambda: not Path(f"/proc/{left_behind}").exists() or not _is_alive(left_behind), 60.0)
    assert Fence(FenceCommand(argv=("/nowhere/fence", "{host}")), ledger, hosts=(H1, H2)).prove(name, LOST) == {H1}
    assert ledger.off_at_s(name, H2) is None


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_command_meets_no_shell_and_has_nothing_of_airflows_settings(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    says = "import os, sys, pathlib; pathlib.Path(sys.argv[1]).write_text(repr((sys.argv[2:], sorted(os.environ))))"
    argv = (sys.executable, "-I", "-c", says, str(tmp_path / "said"), "$(touch x) {host}; true")
    assert Fence(FenceCommand(argv=argv), ledger, hosts=(H1, H2)).prove(gone(ledger), LOST) == {H1, H2}
    said = (tmp_path / "said").read_text()
    assert "$(touch x) h2; true" in said
    assert "AIRFLOW" not in said
    assert "PATH" in said


def test_host_is_turned_off_once_for_all_attempts_that_it_had(tmp_path: Path, ledger: Ledger) -> None:
    first, second = gone(ledger), gone(ledger, replace(KEY, attempt=2), "h2")
    elsewhere = gone(ledger, replace(KEY, attempt=3), "h1")
    ended = gone(ledger, replace(KEY, attempt=4), "h2")
    ledger.note_end(ended, LOST)
    command = fence(tmp_path, ledger)
    at_once([lambda name=name: command.prove(name, LOST) for name in (first, second)])
    assert fenced(tmp_path) == ["h2"]
    assert [ledger.off_at_s(each, H2) is not None for each in (first, second, elsewhere, ended)] == [
        True,
        True,
        False,
        False,
    ]


def test_attempt_that_may_start_later_is_not_proven_gone_by_a_host_that_is_off(tmp_path: Path, ledger: Ledger) -> None:
    name = recorded(ledger)
    assert fence(tmp_path, ledger).prove(name, LOST) == {H1}
    going = recorded(ledger, replace(KEY, attempt=2))
    ledger.gone(name, {})
    assert fence(tmp_path, ledger).prove(name, LOST) == {H1, H2}
    assert ledger.off_at_s(going, H2) is None, "its submitter may stand still, and start it when the host is on again"


@contextmanager
def dying(point: str, side: Side) -> Iterator[None]:
    def listener(name: str, seen: Side) -> None:
        if (name, seen) == (point, side):
            raise KilledError

    effect_points.listen(listener)
    try:
        with pytest.raises(KilledError):
            yield
    finally:
        effect_points.listen(None)


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("point", ["hosts.fence.run", "hosts.ledger.off"])
def test_worker_that_dies_while_it_fences_leaves_what_another_proves(
    tmp_path: Path, ledger: Ledger, point: str, side: Side
) -> None:
    name = gone(ledger)
    command = fence(tmp_path, ledger)
    with dying(point, side):
        command.prove(name, LOST)
    assert command.prove(name, LOST) == {H1, H2}
    assert ledger.off_at_s(name, H2) is not None


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"argv": ()}, "fence"),
        ({"argv": ("fence", "{host}")}, "fence"),
        ({"argv": ("/bin/fence", "h1")}, "fence"),
        ({"argv": ("/bin/{host}",)}, "fence"),
        ({"argv": ("/bin/fence", "{host}"), "limit_s": 0.0}, "fence_limit_s"),
        ({"argv": ("/bin/fence", "{host}"), "limit_s": float("nan")}, "fence_limit_s"),
    ],
)
def test_command_that_cannot_fence_is_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        FenceCommand(**options)
    assert caught.value.path == path


def test_host_that_is_no_longer_the_engines_is_not_turned_off(tmp_path: Path, ledger: Ledger) -> None:
    name = gone(ledger)
    command = FenceCommand(argv=("/bin/true", "{host}"))
    assert Fence(command, ledger, hosts=(H1,)).prove(name, LOST) == {H1}
    assert ledger.off_at_s(name, H2) is None
    assert Fence(command, ledger, hosts=(H1, H2)).prove(name, LOST) == {H1, H2}
    assert Fence(command, ledger, hosts=(H1,)).prove(name, LOST) == {H1, H2}, "what was proven holds"


def test_command_that_may_not_be_killed_proves_nothing_and_is_not_waited_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    killpg, seen = os.killpg, []

    def refuse(pid: int, _signal: int) -> None:
        seen.append(pid)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    command = FenceCommand(argv=("/bin/sh", "-c", "exec sleep 600", "{host}"), limit_s=0.2)
    began_s = time.monotonic()
    assert Fence(command, ledger, hosts=(H1, H2)).prove(gone(ledger), LOST) == {H1}
    assert time.monotonic() - began_s < 300.0
    killpg(seen[0], signal.SIGKILL)
