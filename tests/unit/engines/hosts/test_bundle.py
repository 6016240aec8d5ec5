from __future__ import annotations

import ast
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

from airflow_llmsched.engines.hosts import bundle, host
from airflow_llmsched.engines.hosts.words import Failed, answer_of


def install(folder: Path, *, digest: str, data: bytes) -> object:
    told = json.dumps({"folder": str(folder), "digest": digest}).encode() + b"\n"
    argv = [sys.executable, "-I", "-S", "-c", bundle.INSTALL]
    return answer_of(subprocess.run(argv, input=told + data, capture_output=True, check=True, timeout=60).stdout)


def test_same_sources_give_the_same_bytes_and_their_digest() -> None:
    made = bundle.build()
    bundle.build.cache_clear()
    assert bundle.build() == made
    assert made.digest == hashlib.sha256(made.data).hexdigest()


def test_everything_in_it_is_found_and_nothing_of_it_needs_what_is_not_shipped() -> None:
    names = set(zipfile.ZipFile(io.BytesIO(bundle.build().data)).namelist())
    assert {"__main__.py", "airflow_llmsched/agent/supervisor.py", "airflow_llmsched/trainers/byte_gpt.py"} <= set(
        names
    )
    assert not [name for name in names if "provider" in name or "client" in name]


def test_whatever_a_shipped_module_imports_of_ours_is_shipped_too() -> None:
    """A part of the package hides the whole one that may be installed on the host."""
    archive = zipfile.ZipFile(io.BytesIO(bundle.build().data))
    shipped = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in archive.namelist()}
    wanted = set()
    for name in archive.namelist():
        for node in ast.walk(ast.parse(archive.read(name))) if name.endswith(".py") else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_llmsched"):
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted |= {each if each in shipped else str(node.module) for each in whole}
    assert wanted - shipped == set()


def test_command_answers_from_the_bundle_alone_without_any_installed_package(tmp_path: Path) -> None:
    made = bundle.build()
    home = tmp_path / "ours"
    for _ in range(2):
        assert install(home, digest=made.digest, data=made.data) == {"installed": str(home / "agent" / made.digest)}
    assert [path.name for path in (home / "agent").iterdir()] == [made.digest]
    told = json.dumps({"folder": str(home), "node": "h1", "names": ["a-g1-a1"], "all": True, "slots": True}).encode()
    for verb in ("survey", "nonsense"):
        argv = [sys.executable, "-I", "-S", str(home / "agent" / made.digest), verb]
        done = subprocess.run(argv, input=told + b"\n", capture_output=True, check=True, timeout=60, cwd="/")
        answer = answer_of(done.stdout)
        if verb == "nonsense":
            assert isinstance(answer, Failed)
        else:
            assert isinstance(answer, dict), done.stderr
            assert (answer["attempts"], answer["all"], answer["used"]) == ({"a-g1-a1": {"kind": "absent"}}, {}, [])


def test_command_that_stays_does_the_verb_of_each_line_until_there_are_no_more(tmp_path: Path) -> None:
    made = bundle.build()
    home = tmp_path / "ours"
    install(home, digest=made.digest, data=made.data)
    argv = [sys.executable, "-I", "-S", str(home / "agent" / made.digest), "stay"]
    told = {"folder": str(home), "node": "h1", "names": []}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as stays:
        assert stays.stdin is not None
        assert stays.stdout is not None
        answers = []
        for each in ({**told, "verb": "survey"}, {**told, "verb": "nonsense"}, told, {**told, "verb": "survey"}):
            stays.stdin.write(json.dumps(each).encode() + b"\n")
            stays.stdin.flush()
            answers.append(answer_of(stays.stdout.readline()))
        stays.stdin.close()
        assert stays.wait(60.0) == 0
    assert [isinstance(each, dict) for each in answers] == [True, False, False, True]
    first, _, _, last = answers
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert first["at_s"] < last["at_s"], "it looked again"


def test_what_arrived_damaged_is_not_installed(tmp_path: Path) -> None:
    answer = install(tmp_path / "ours", digest="0" * 64, data=bundle.build().data)
    assert isinstance(answer, Failed)
    assert "not what was sent" in answer.reason


def test_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "ours"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    answer = install(home, digest=bundle.build().digest, data=bundle.build().data)
    assert isinstance(answer, Failed)
    assert "0700" in answer.reason
    assert list(home.iterdir()) == []


def test_mark_is_the_same_at_both_ends() -> None:
    assert host.MARK == bundle.MARK
    assert bundle.INSTALL.count(bundle.MARK) == 2
    assert f"sys.version_info < {bundle.MIN_PYTHON}" in bundle.INSTALL
