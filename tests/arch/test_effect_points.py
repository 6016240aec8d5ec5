"""What changes anything outside of the process is wrapped in an effect point, where the crash harness can shoot."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from airflow_llmsched.effect_points import EffectPoint
from tests.support.effects import Effect, effects
from tests.support.source import ROOT, modules, tree

EXEMPT = {
    "agent": "runs in the gang, not in a worker: it dies with its node, and is the standard library only",
    "trainers": "runs in the gang; what it writes is judged by its checksums",
    "testing": "starts and stops what tests need",
    "cli": "acts through control, or keeps a demonstration's own files",
}
"""Packages whose effects are no worker's, and why."""

ALLOWED = {
    ("engines/fleet/engine.py", "submit"): "handed on to a cluster's engine, within its caller's point and its own",
    ("engines/fleet/engine.py", "abandon"): "the same",
    ("engines/fleet/engine.py", "stop"): "the same",
    ("engines/slurm/runner.py", "run"): "whoever has it run a command that changes something has a point around that",
    ("engines/attempts.py", "locked"): "an empty file to lock: whether it is there says nothing",
    ("engines/hosts/gpus.py", "look"): "runs on a host, and only asks",
    ("engines/hosts/host.py", "start"): "runs on a host: its connection breaks there, no worker dies",
    ("engines/hosts/host_files.py", "_take"): "the same",
    ("engines/hosts/host_files.py", "take"): "the same",
    ("staging/shards.py", "_alone"): "an empty file to lock: whether it is there says nothing",
}
"""Effects without a point, by module and function, and why they need none."""

CHECKED = [module for module in modules() if len(module.parts) < 3 or module.parts[1] not in EXEMPT]


def _inside(module: Path) -> str:
    return str(module.relative_to("airflow_llmsched"))


@cache
def _effects_without_point(module: Path) -> list[Effect]:
    """Return a module's effects that nothing wraps; looked for once, as two tests ask."""
    return [effect for effect in effects(tree(module)) if effect.point is None]


@pytest.mark.parametrize("module", CHECKED, ids=_inside)
def test_every_effect_is_wrapped_in_an_effect_point(module: Path) -> None:
    unmarked = [
        f"{module}:{effect.line}: {effect.call} in {effect.function}"
        for effect in _effects_without_point(module)
        if (_inside(module), effect.function) not in ALLOWED
    ]
    assert unmarked == [], "wrap it in an EffectPoint, or allow it here with the reason"


def test_no_allowance_outlives_its_effect() -> None:
    unmarked = {(_inside(module), effect.function) for module in CHECKED for effect in _effects_without_point(module)}
    assert set(ALLOWED) == unmarked
    assert {name for name in EXEMPT if (ROOT / "airflow_llmsched" / name).is_dir()} == set(EXEMPT)


@cache
def _points_made() -> list[tuple[Path, str, str]]:
    """Return every ``NAME = EffectPoint("name")`` of the package: module, NAME, name."""
    return [
        (module, node.targets[0].id, node.value.args[0].value)
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == EffectPoint.__name__
    ]


def test_points_are_made_at_module_level_with_plain_names_that_nobody_shares() -> None:
    made = _points_made()
    text = "".join((ROOT / module).read_text() for module in modules())
    assert len(made) == len(re.findall(r"(?<!class )\bEffectPoint\(\"", text)), "one is not NAME = EffectPoint(...)"
    assert [name for name, count in Counter(name for _, _, name in made).items() if count > 1] == []
    assert [name for _, _, name in made if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name)] == []


def test_every_point_wraps_something() -> None:
    idle = [
        f"{module}: {variable}"
        for module, variable, _ in _points_made()
        if not re.search(rf"@{variable}\b|\bwith [^\n]*\b{variable}\b", (ROOT / module).read_text())
    ]
    assert idle == []


SNIPPET = """
import os, shutil, subprocess
from pathlib import Path
from dataclasses import replace

_WRITE = EffectPoint("snippet.write")
_OTHER = something("else")

def wrapped(path, data, store):
    with _WRITE:
        path.write_bytes(data)
        if data:
            store.put("key", data)
    with suppress(OSError), _WRITE, path.open("wb") as file:
        os.unlink(path)

@_WRITE
def decorated(path, target):
    os.rename(path, target)

def harmless(text, value, engine, file, path, records, codec, threads):
    text.replace("a", "b")
    replace(value, field=1)
    value.replace(year=1)
    engine.poll([])
    path.open("rb")
    open(path)
    os.open(path, os.O_RDONLY)
    records.extend([])
    codec.prepare(value)
    threads.submit(value)

def {function}(self, path, data, engine, store, channel, command):
    {call}
"""

UNMARKED = [
    'path.write_text("x")',
    "path.replace(data)",
    "path.unlink(missing_ok=True)",
    'path.open("ab")',
    'open(path, mode="w")',
    "os.open(path, os.O_WRONLY | os.O_CREAT)",
    "os.kill(data, 9)",
    "os.link(path, data)",
    "shutil.rmtree(path)",
    "subprocess.Popen(command)",
    "self._engine.submit(data, key=1)",
    "open_engine(1).stop(data, grace_s=1)",
    "engine.abandon(1)",
    "self._store.create(1, data)",
    "scope.store().delete(1)",
    "obstore.put(data, 1, 2)",
    "channel.renew(until_s=1)",
    "self._open_channel(1).revoke(at_s=1, lease_s=1)",
    "write_json(path, data)",
    "proc.end_all(data, grace_s=1)",
    "gang.node(1).make()",
    "with _OTHER: path.touch()",
    "with path.open('wb'), _WRITE: pass",
    "(lambda: path.mkdir())()",
]


@pytest.mark.parametrize("call", UNMARKED)
def test_the_finder_sees_an_effect_that_nobody_wrapped(call: str) -> None:
    snippet = SNIPPET.replace("{function}", "bare").replace("{call}", call)
    assert [effect.function for effect in effects(ast.parse(snippet)) if effect.point is None] == ["bare"]


def test_the_finder_sees_that_an_effect_is_wrapped_and_what_is_none() -> None:
    found = effects(ast.parse(SNIPPET.replace("{function}", "bare").replace("{call}", "pass")))
    assert [(effect.function, effect.point) for effect in found] == [("wrapped", "_WRITE")] * 4 + [
        ("decorated", "_WRITE")
    ]


def test_what_is_defined_inside_of_a_wrapped_block_is_not_wrapped_when_it_is_called_later() -> None:
    source = '_WRITE = EffectPoint("a.b")\nwith _WRITE:\n    def later(path):\n        path.unlink()\n'
    assert [effect.point for effect in effects(ast.parse(source))] == [None]
