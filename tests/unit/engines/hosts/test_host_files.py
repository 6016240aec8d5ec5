from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.engines.hosts.folders import Manifest, manifest_of
from airflow_llmsched.engines.hosts.words import Failed
from tests.support.hosts_bundle import OneHost


@pytest.fixture
def host(tmp_path: Path) -> OneHost:
    return OneHost(tmp_path)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    source = tmp_path / "code"
    (source / "inner").mkdir(parents=True)
    (source / "a.py").write_text("print(1)\n")
    (source / "inner" / "run").write_bytes(os.urandom(3_000_000))
    (source / "inner" / "run").chmod(0o755)
    return manifest_of(source)


def told(manifest: Manifest, **more: Any) -> dict[str, Any]:
    return {"digest": manifest.digest, "files": dict(manifest.files), **more}


def take(host: OneHost, manifest: Manifest, *paths: str, cut_bytes: int = 0) -> Any:
    data = b"".join((manifest.source / path).read_bytes() for path in paths)
    return host.run("take", told(manifest, sends=list(paths)), follows=data[: len(data) - cut_bytes])


def test_folder_appears_whole_once_all_of_it_is_there(host: OneHost, manifest: Manifest) -> None:
    paths = ["a.py", "inner/run"]
    assert host.ok("files", **told(manifest)) == {"whole": False, "missing": paths}
    assert take(host, manifest, "a.py") == {"whole": False, "missing": ["inner/run"]}
    target = host.folder / "files" / manifest.digest
    assert not target.exists()
    assert take(host, manifest, "inner/run") == {"whole": True, "missing": []}
    for path in paths:
        assert (target / path).read_bytes() == (manifest.source / path).read_bytes()
    assert [(target / path).stat().st_mode & 0o777 for path in paths] == [0o600, 0o700]
    assert host.ok("files", **told(manifest)) == {"whole": True, "missing": []}
    assert take(host, manifest, "a.py") == {"whole": True, "missing": []}


def test_what_came_before_a_connection_broke_is_not_sent_again(host: OneHost, manifest: Manifest) -> None:
    answer = take(host, manifest, "a.py", "inner/run", cut_bytes=5)
    assert isinstance(answer, Failed)
    assert "5 bytes before the end" in answer.reason
    assert host.ok("files", **told(manifest))["missing"] == ["inner/run"]


def test_damaged_file_is_not_taken(host: OneHost, manifest: Manifest) -> None:
    answer = host.run("take", told(manifest, sends=["a.py"]), follows=b"print(2)\n")
    assert isinstance(answer, Failed)
    assert "damaged" in answer.reason
    assert "a.py" in host.ok("files", **told(manifest))["missing"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_path_that_leads_out_of_the_folder_is_refused(host: OneHost, tmp_path: Path, path: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_text("")
    honest = manifest_of(tmp_path / "code")
    assert isinstance(host.run("files", told(honest, files={path: dict(honest.files["x"])})), Failed)
    files = {path: dict(honest.files["x"])}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    answer = host.run("files", {"files": files, "digest": digest})
    assert isinstance(answer, Failed)
    assert "out of the folder" in answer.reason
