"""Files between processes: JSON lines that survive a torn end, and small JSON files never seen half-written."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

MAX_READ_BYTES = 1024 * 1024
"""Most that one call reads of one file, so that a reader who was away catches up in bounded steps."""


MAX_LINE_LENGTH = 400
"""Characters of one log line that are shown."""

_CONTROL = dict.fromkeys((*range(9), *range(10, 32), *range(127, 160)), "\ufffd")


class LineWriter:
    """Appends JSON lines, each by one write. After a write that came out short, the next starts on a new line."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._torn = False

    def append(self, record: dict[str, Any]) -> None:
        """Append one record. Raises ``OSError``; a line may then be torn, which readers skip."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        written = os.write(self._fd, line)
        self._torn = 0 < written < len(line)
        if written < len(line):
            # The rest of the line says why it does not fit: usually ENOSPC. Nothing else may be written in between.
            os.write(self._fd, line[written:])
            self._torn = False

    def close(self) -> None:
        """Close the file. A later append opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class LineReader:
    """Reads whole JSON lines from where it stopped. ``num_corrupt`` counts lines that were no JSON object."""

    def __init__(self, path: str, *, offset: int = 0) -> None:
        self._path = path
        self.offset = offset
        self.num_corrupt = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the records after the last read; a torn last line waits. An absent file has none."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123  (cheap on the hot path)
                file.seek(self.offset)
                data = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return []
        lines, consumed = whole_lines(data)
        self.offset += consumed
        records = []
        for line in lines:
            record = parse(line)
            if record is None:
                self.num_corrupt += 1
            else:
                records.append(record)
        return records


def whole_lines(data: bytes, *, limit_bytes: int = MAX_READ_BYTES) -> tuple[list[bytes], int]:
    """Return the non-empty complete lines of ``data``, one read of at most ``limit_bytes``, and their length in bytes.

    A line longer than one read can never complete, so it is given up as it stands instead of blocking all after it.
    """
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) >= limit_bytes:
        end = len(data)
    return [line for line in data[:end].split(b"\n") if line.strip()], end


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of one line, or None when it is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path``; readers see the old value or the new one. Raises ``OSError`` naming ``path``."""
    try:
        _temporary(path, value).replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def create_json(path: Path, value: dict[str, Any]) -> bool:
    """Write ``path`` only if it is absent, whole; say whether we did. Raises ``OSError`` naming ``path``."""
    try:
        temporary = _temporary(path, value)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return True


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in ``path``, None when absent. Raises ``OSError`` or ``ValueError`` when unreadable."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")  # noqa: TRY004  (bad content, not a bad argument)
    return value


def tail(path: Path, num_lines: int, *, max_bytes: int = 64 * 1024) -> str:
    """Return the last lines of a text file, within its last ``max_bytes``; empty when absent or unreadable.

    They end up in reasons, events, databases and terminals, so what a program wrote is tamed: long lines are cut, and
    control characters (of which NUL breaks databases, and escapes drive terminals) are replaced.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = text.splitlines()
    return "\n".join(_tame(line) for line in lines[len(lines) - min(num_lines, len(lines)) :])


def _tame(line: str) -> str:
    line = line.translate(_CONTROL)
    return line if len(line) <= MAX_LINE_LENGTH else line[: MAX_LINE_LENGTH - 1] + "…"


def _temporary(path: Path, value: dict[str, Any]) -> Path:
    temporary = path.with_name(f".{path.name[:80]}.{os.getpid()}.{time.monotonic_ns()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(value, separators=(",", ":")).encode())
    except BaseException:
        temporary.unlink()
        raise
    return temporary
