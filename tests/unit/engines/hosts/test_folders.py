from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched.engines.hosts import folders
from airflow_llmsched.engines.hosts.folders import Folders, manifest_of
from airflow_llmsched.errors import LaunchError, SpecError
from tests.support.hosts_engine import HostsHarness

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts


def test_manifest_is_what_the_folder_holds_and_nothing_that_tools_left(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    before = manifest_of(tmp_path)
    assert list(before.files) == ["a/x.py"]
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("1")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert manifest_of(tmp_path).digest == before.digest
    (tmp_path / "a" / "x.py").write_text("2")
    assert manifest_of(tmp_path).digest != before.digest


def test_folder_that_is_none_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (Path("relative"), tmp_path / "none"):
        with pytest.raises(SpecError, match="absolute path of a folder"):
            manifest_of(path)
    (tmp_path / "x").write_text("12345")
    monkeypatch.setattr(folders, "MAX_BYTES", 4)
    with pytest.raises(SpecError, match="bring only code"):
        manifest_of(tmp_path)


@pytest.mark.server
def test_folder_comes_to_all_hosts_at_once_and_only_once(tmp_path: Path, machines: SshHosts) -> None:
    source = tmp_path / "code"
    source.mkdir()
    for index in range(3):
        (source / f"{index}.bin").write_bytes(os.urandom(12 * 1024 * 1024))
    harness = HostsHarness(tmp_path / "engine", machines, num_hosts=3)
    brings = Folders(harness.engine._client, folder=str(harness.folder), folders=(str(source),))
    hosts = list(harness.engine._hosts.values())
    (where,) = brings.bring(hosts)
    for name in harness.names:
        there = machines.disk_of(name) / Path(where).relative_to(machines.disk)
        assert {path.name: path.read_bytes() for path in there.iterdir()} == {
            path.name: path.read_bytes() for path in source.iterdir()
        }
    assert brings.bring(hosts) == (where,)


@pytest.mark.server
def test_host_that_cannot_be_reached_is_named(tmp_path: Path, machines: SshHosts) -> None:
    source = tmp_path / "code"
    source.mkdir()
    (source / "x").write_text("1")
    harness = HostsHarness(tmp_path / "engine", machines, silence_limit_s=1.0)
    brings = Folders(harness.engine._client, folder=str(harness.folder), folders=(str(source),))
    machines.cut_off("h2")
    try:
        with pytest.raises(LaunchError, match="host h2: files could not be brought"):
            brings.bring(list(harness.engine._hosts.values()))
    finally:
        machines.join_again("h2")
