"""What is shipped to a host: the agent, the shipped trainers, and the command that works there. No SDK, no Airflow.

It is unpacked once per host into a folder named by its digest, so that an upgrade never changes what a running gang
uses. A trainer on the host imports ``airflow_llmsched.agent`` from there.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import airflow_llmsched

MIN_PYTHON = (3, 11)

PARTS = (
    *("__init__.py", "errors.py", "effect_points.py", "units.py", "agent", "domain", "trainers"),
    *("engines/__init__.py", "engines/agent_request.py", "engines/agent_states.py"),
    *("engines/attempts.py", "engines/attempt_files.py"),
    *("engines/hosts/__init__.py", "engines/hosts/gpus.py", "engines/hosts/host.py", "engines/hosts/host_files.py"),
)
"""Modules and folders of this package; all of it runs on the standard library, but for the trainers."""

_MAIN = """\
import sys
from airflow_llmsched.engines.hosts.host import main
sys.exit(main(sys.argv[1:]))
"""
_EPOCH = (2000, 1, 1, 0, 0, 0)  # the same bytes for the same sources, whenever they were checked out

MARK = "llmsched-answer:"
"""Begins the one line of a host's output that is ours: a login shell may write what it likes before it."""

INSTALL = """\
import sys
if sys.version_info < (3, 11):
    sys.stdout.write('llmsched-answer:{"v": 1, "refused": "python %d.%d is too old"}\\n' % sys.version_info[:2])
    sys.exit(0)
import compileall, hashlib, io, json, os, shutil, uuid, zipfile
told = json.loads(sys.stdin.buffer.readline())
data = sys.stdin.buffer.read()
def say(**words):
    sys.stdout.write("llmsched-answer:" + json.dumps({"v": 1, **words}) + "\\n")
    sys.exit(0)
if hashlib.sha256(data).hexdigest() != told["digest"]:
    say(refused="what arrived is not what was sent")
os.umask(0o077)
os.makedirs(told["folder"], exist_ok=True)
seen = os.lstat(told["folder"])
if seen.st_uid != os.geteuid() or seen.st_mode & 0o077 or not os.path.isdir(told["folder"]):
    say(refused="folder %s is not this user's alone (owner, mode 0700)" % told["folder"])
home = os.path.join(told["folder"], "agent")
os.makedirs(home, exist_ok=True)
target = os.path.join(home, told["digest"])
if not os.path.isdir(target):
    new = os.path.join(home, ".new-" + uuid.uuid4().hex)
    zipfile.ZipFile(io.BytesIO(data)).extractall(new)
    compileall.compile_dir(new, quiet=2)
    try:
        os.rename(new, target)
    except OSError:
        if not os.path.isdir(target):
            raise
        shutil.rmtree(new, ignore_errors=True)
say(ok={"installed": target})
"""
"""Runs on the host before anything of ours is there: reads a line of JSON and the bundle. Any Python 3 understands it
as far as it has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A zip archive and its SHA-256, in hex."""

    data: bytes
    digest: str


@functools.cache
def build() -> Bundle:
    """Return the bundle of this installation. The same sources give the same bytes."""
    package = Path(airflow_llmsched.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for path in _files(package):
            _add(archive, f"{package.name}/{path.relative_to(package).as_posix()}", path.read_bytes())
    data = buffer.getvalue()
    return Bundle(data=data, digest=hashlib.sha256(data).hexdigest())


def _files(package: Path) -> list[Path]:
    found: set[Path] = set()
    for part in PARTS:
        path = package / part
        found.update(path.rglob("*.py") if path.is_dir() else [path])
    return sorted(found)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, date_time=_EPOCH), data, zipfile.ZIP_DEFLATED)
