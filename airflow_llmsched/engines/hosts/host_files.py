"""A folder that is brought to this host: which of its files are here already, and taking the rest. Runs on the host.

Files lie in ``<folder>/files/<digest of the manifest>``, which appears whole or not at all. What came before a
connection broke is kept in a folder beside it, and need not come again. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from airflow_llmsched.engines.attempts import locked

_CHUNK_BYTES = 1024 * 1024


def look(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether the folder is here whole, and, if not, the files that are still missing."""
    if _target(told).is_dir():
        return {"whole": True, "missing": []}
    part = _part(told)
    return {"whole": False, "missing": [path for path, file in _files(told) if not _is_there(part / path, file)]}


def take(told: Mapping[str, Any]) -> dict[str, Any]:
    """Read the bytes of the files ``told["sends"]``, one after the other, from standard input, and check each.

    Once all are there and right, the folder appears.
    """
    part = _part(told)
    files = dict(_files(told))
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(part.parent / f"{told['digest']}.lock"):
        if _target(told).is_dir():
            return {"whole": True, "missing": []}
        part.mkdir(mode=0o700, exist_ok=True)
        for path in told["sends"]:
            _take(part / path, files[path], sys.stdin.buffer)
        missing = look(told)["missing"]
        if not missing:
            part.rename(_target(told))
    return {"whole": not missing, "missing": missing}


def _take(path: Path, file: Mapping[str, Any], source: BinaryIO) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    left = int(file["num_bytes"])
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as target:
        while left:
            data = source.read(min(_CHUNK_BYTES, left))
            if not data:
                raise ValueError(f"the connection ended {left} bytes before the end of {path.name}")
            target.write(data)
            left -= len(data)
    new.chmod(0o700 if file["executable"] else 0o600)
    if not _is_there(new, file):
        new.unlink()
        raise ValueError(f"{path.name} arrived damaged")
    new.rename(path)


def _files(told: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the manifest. Raises ``ValueError`` when its digest is another, or a path leads out of it."""
    text = json.dumps(told["files"], sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != told["digest"]:
        raise ValueError("the manifest does not match its digest")
    for path in told["files"]:
        if not path or path.startswith("/") or ".." in Path(path).parts:
            raise ValueError(f"{path!r} leads out of the folder")
    return sorted(told["files"].items())


def _is_there(path: Path, file: Mapping[str, Any]) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file["num_bytes"]:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == str(file["sha256"])


def _target(told: Mapping[str, Any]) -> Path:
    return Path(told["folder"]) / "files" / str(told["digest"])


def _part(told: Mapping[str, Any]) -> Path:
    return Path(told["folder"]) / "files" / f"{told['digest']}.part"
