"""What comes of asking real hosts that are well, badly set up, or hostile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llmsched.engines.hosts.client import Answer, Ask
from airflow_llmsched.engines.hosts.words import MAX_TEXT, Failed, Unseen
from tests.support.hosts_engine import HostsHarness

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server

LIMIT_S = 60.0


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path, machines)
    yield harness
    harness.close()


def survey(harness: HostsHarness, **told: Any) -> Mapping[str, Answer]:
    ask = Ask(verb="survey", told={"names": [], **told}, limit_s=LIMIT_S)
    answers = harness.engine._client.ask(dict.fromkeys(harness.engine._hosts.values(), ask))
    return {str(host.name): answer for host, answer in answers.items()}


def with_python(tmp_path: Path, machines: SshHosts, text: str) -> HostsHarness:
    """An engine whose hosts have this for a Python."""
    program = tmp_path / "their-python"
    program.write_text(text)
    program.chmod(0o755)
    return HostsHarness(tmp_path / "engine", machines, python=str(program))


def test_command_is_shipped_to_a_host_that_lacks_it_and_found_there_from_then_on(harness: HostsHarness) -> None:
    boots = []
    for name in harness.names:
        there = harness.machines.disk_of(name) / harness.folder.name
        shutil.rmtree(there)  # as if it had been installed anew
    for _ in range(2):
        answers = survey(harness)
        assert all(isinstance(answer, dict) for answer in answers.values()), answers
        boots.append({name: answer["boot_id"] for name, answer in answers.items()})  # type: ignore[index]
    assert boots[0] == boots[1]
    assert len(set(boots[0].values())) == len(harness.names)
    for name in harness.names:
        there = harness.machines.disk_of(name) / harness.folder.name
        assert there.stat().st_mode & 0o077 == 0
        assert len(list((there / "agent").iterdir())) == 1


def test_host_without_such_a_python_says_what_to_name(tmp_path: Path, machines: SshHosts) -> None:
    for answer in survey(HostsHarness(tmp_path, machines, python="/nowhere/python3")).values():
        assert isinstance(answer, Failed)
        assert "name a Python by option 'python'" in answer.reason


def test_python_that_is_too_old_is_said(tmp_path: Path, machines: SshHosts) -> None:
    old = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv.pop(1))"
    harness = with_python(tmp_path, machines, f'#!/bin/sh\nshift 3; exec python3 -c "{old}" "$@"\n')
    for answer in survey(harness).values():
        assert isinstance(answer, Failed)
        assert "python 3.9 is too old" in answer.reason


def test_words_of_a_hostile_host_are_bounded_and_tamed(tmp_path: Path, machines: SshHosts) -> None:
    empty = with_python(tmp_path, machines, "#!/bin/sh\nyes llmsched-answer:\n")
    assert all(isinstance(answer, Failed) for answer in survey(empty).values())
    flood = with_python(tmp_path, machines, "#!/bin/sh\nyes no-answer:\n")
    began_s = time.monotonic()
    for answer in survey(flood).values():
        assert isinstance(answer, Unseen)
        assert "wrote more than" in answer.reason
    assert time.monotonic() - began_s < LIMIT_S
    reason = r"\\u001b[2J" + "x" * 100_000
    lies = f"""#!/bin/sh\nprintf 'llmsched-answer:{{"v": 1, "failed": "{reason}"}}\\n'\n"""
    for answer in survey(with_python(tmp_path, machines, lies)).values():
        assert isinstance(answer, Failed)
        assert len(answer.reason) <= MAX_TEXT
        assert "\x1b" not in answer.reason
    garbage = with_python(tmp_path, machines, "#!/bin/sh\nhead -c 100000 /dev/urandom\n")
    assert all(isinstance(answer, Failed) for answer in survey(garbage).values())


def test_host_that_is_cut_off_is_unseen_and_the_other_answers(harness: HostsHarness, machines: SshHosts) -> None:
    survey(harness)
    machines.cut_off("h2")
    try:
        answers = survey(harness)
    finally:
        machines.join_again("h2")
    assert isinstance(answers["h1"], dict)
    assert isinstance(answers["h2"], Unseen)
    assert isinstance(survey(harness)["h2"], dict)
