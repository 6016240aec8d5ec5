from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched.engines.hosts import usable
from airflow_llmsched.errors import CapacityError, SpecError
from airflow_llmsched.testing.engine_contract import SUCCEEDS, gang_of, submit
from tests.support.hosts_engine import HostsHarness

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path, machines)
    yield harness
    harness.close()


def reasons(harness: HostsHarness) -> list[str]:
    return [node.unusable_reason or "" for node in harness.engine.topology().nodes]


def test_channel_in_a_folder_that_hosts_do_not_share_is_refused_before_anything_starts(harness: HostsHarness) -> None:
    gang = replace(gang_of(harness, [SUCCEEDS] * 4), channel_root=str(harness.machines.disk / "channel"))
    with pytest.raises(SpecError, match=r"h1, h2 does not see it.*channel_uri"):
        submit(harness, gang)
    assert list(harness.engine.find(gang.key.run)) == []
    assert list((harness.machines.disk / "channel").iterdir()) == []


def test_host_without_gpus_says_so_where_they_are_asked_for(tmp_path: Path, machines: SshHosts) -> None:
    harness = HostsHarness(tmp_path, machines, check_gpus=True)
    for reason in reasons(harness):
        assert "does not show 2 healthy GPUs" in reason
        assert "nvidia-smi is not there" in reason
    with pytest.raises(CapacityError, match="h1 cannot be used"):
        harness.engine.submit(harness.engine.render(gang := gang_of_first(harness)), key=gang.key)


def gang_of_first(harness: HostsHarness) -> object:
    """A gang on hosts that would not be planned on."""
    well = HostsHarness(harness.root / "well", harness.machines)
    return gang_of(well, [SUCCEEDS] * 2)


def test_host_whose_clock_is_off_is_not_used(harness: HostsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reasons(harness) == ["", ""]
    monkeypatch.setattr(usable, "CLOCK_LIMIT_S", -60.0)  # as if they were a minute off
    for reason in reasons(harness):
        assert "run NTP there" in reason


def test_host_with_another_key_is_not_used_and_the_next_step_is_named(tmp_path: Path, machines: SshHosts) -> None:
    known = tmp_path / "known_hosts"
    lines = machines.known_hosts.read_text().splitlines()
    first, second = lines[0].split(), lines[1].split()
    known.write_text("\n".join([" ".join([first[0], *second[1:]]), lines[1]]) + "\n")
    harness = HostsHarness(tmp_path / "engine", machines, known_hosts=str(known))
    changed, same = reasons(harness)
    assert same == ""
    assert "host h1" in changed
    assert "another host key" in changed
    assert "ssh-keyscan" in changed


def test_host_that_cannot_be_used_is_named_at_submit(harness: HostsHarness, machines: SshHosts) -> None:
    gang = gang_of(harness, [SUCCEEDS] * 4)
    machines.cut_off("h2")
    try:
        with pytest.raises(CapacityError, match=r"host h2 cannot be used: .*silent"):
            submit(harness, gang)
        assert list(harness.engine.find(gang.key.run)) == []
        assert [bool(node.unusable_reason) for node in harness.engine.topology().nodes] == [False, True]
    finally:
        machines.join_again("h2")
