"""Brings folders of code and settings to hosts, all at once; what is there already is not sent again.

A folder is known by the digest of what is in it. Each file is checked where it arrives, and the whole appears at once.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.hosts.client import Answer, Ask, HostsClient
from airflow_llmsched.engines.hosts.inventory import Host
from airflow_llmsched.engines.hosts.words import Failed, Unseen
from airflow_llmsched.errors import LaunchError, SpecError

_SEND = EffectPoint("hosts.files.send")

MAX_BYTES = 1024 * 1024 * 1024
MAX_FILES = 20_000
_BATCH_BYTES = 32 * 1024 * 1024
_LOOK_LIMIT_S = 120.0
_SEND_LIMIT_S = 600.0
_MAX_ROUNDS = 1000
_SKIPPED = ("__pycache__", ".git", ".venv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in a folder: by relative path, size, digest and whether it is a program."""

    source: Path
    files: Mapping[str, Mapping[str, Any]]
    digest: str


def manifest_of(source: Path) -> Manifest:
    """Return the manifest of a folder. Raises ``SpecError`` when there is none, or it is too large to be code.

    Links are not followed out of it, and what tools leave behind is left out.
    """
    if not source.is_absolute() or not source.is_dir():
        raise SpecError(path="code", value=str(source), hint="must be the absolute path of a folder of this machine")
    files: dict[str, dict[str, Any]] = {}
    num_bytes = 0
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if any(part in _SKIPPED for part in inside.parts) or path.is_symlink() or not path.is_file():
            continue
        status = path.stat()
        num_bytes += status.st_size
        if num_bytes > MAX_BYTES or len(files) >= MAX_FILES:
            hint = f"has more than {MAX_BYTES} bytes or {MAX_FILES} files: bring only code, and data by other means"
            raise SpecError(path="code", value=str(source), hint=hint)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        is_program = bool(status.st_mode & stat.S_IXUSR)
        files[inside.as_posix()] = {"num_bytes": status.st_size, "sha256": digest, "executable": is_program}
    text = json.dumps(files, sort_keys=True, separators=(",", ":"))
    return Manifest(source=source, files=files, digest=hashlib.sha256(text.encode()).hexdigest())


class Folders:
    """Brings ``folders`` of this machine below ``folder`` of each host."""

    def __init__(self, client: HostsClient, *, folder: str, folders: Sequence[str]) -> None:
        self._client = client
        self._folder = folder
        self._sources = tuple(Path(each) for each in folders)

    def bring(self, hosts: Sequence[Host]) -> tuple[str, ...]:
        """Return where the folders are on each of these hosts, once they are. Raises ``SpecError``, ``LaunchError``."""
        return tuple(self._bring(manifest_of(source), hosts) for source in self._sources)

    def _bring(self, manifest: Manifest, hosts: Sequence[Host]) -> str:
        told = {"digest": manifest.digest, "files": manifest.files}
        look = Ask(verb="files", told=told, limit_s=_LOOK_LIMIT_S)
        answers = self._client.ask(dict.fromkeys(hosts, look))
        for _ in range(_MAX_ROUNDS):
            missing = {host: _missing(host, answer) for host, answer in answers.items()}
            sends = {host: _batch(manifest, paths) for host, paths in missing.items() if paths}
            if not sends and all(_is_whole(answer) for answer in answers.values()):
                return f"{self._folder}/files/{manifest.digest}"
            asks = {host: self._take(manifest, told, paths) for host, paths in sends.items()}
            for host, answer in answers.items():
                if host not in asks and not _is_whole(answer):
                    asks[host] = self._take(manifest, told, [])  # all has come, but not yet been made whole
            with _SEND:
                answers |= self._client.ask(asks)
        raise LaunchError(f"{manifest.source} does not come to an end on {', '.join(host.name for host in hosts)}")

    def _take(self, manifest: Manifest, told: Mapping[str, Any], paths: Sequence[str]) -> Ask:
        data = b"".join((manifest.source / path).read_bytes() for path in paths)
        return Ask(verb="take", told={**told, "sends": list(paths)}, limit_s=_SEND_LIMIT_S, follows=data)


def _missing(host: Host, answer: Answer) -> list[str]:
    if isinstance(answer, Failed | Unseen):
        raise LaunchError(f"host {host.name}: files could not be brought there: {answer.reason}; nothing was started")
    return [str(path) for path in answer["missing"]]


def _is_whole(answer: Answer) -> bool:
    return isinstance(answer, Mapping) and answer["whole"] is True


def _batch(manifest: Manifest, paths: Sequence[str]) -> list[str]:
    """Return the first of ``paths`` that go together: one, or more of which all are small."""
    batch: list[str] = []
    num_bytes = 0
    for path in paths:
        num_bytes += int(manifest.files[path]["num_bytes"])
        if batch and num_bytes > _BATCH_BYTES:
            break
        batch.append(path)
    return batch
