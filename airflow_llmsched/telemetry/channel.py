"""Control's end of the run channel over a shared directory.

It reads ``up/<node>.jsonl`` and writes orders and lease to ``down/``; the other end is ``agent.supervisor``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.agent.spool import read_json, whole_lines, write_json
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import CouldNotLookError, StoreError

log = logging.getLogger(__name__)

_VERSION = 1
_SUFFIX = ".jsonl"
_MAX_READ_BYTES = 4 * 1024 * 1024
"""Per node and call. Whoever was away catches up in several reads, in bounded memory."""


_MAX_LAST_LINE_BYTES = 64 * 1024


class DirectoryChannel:
    """A ``RunChannel`` and a ``ChannelWitness``. Positions of its cursor are byte offsets.

    ``num_corrupt`` counts lines it had to skip.
    """

    def __init__(self, channel_root: str) -> None:
        self._root = Path(channel_root)
        self.num_corrupt = 0

    def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return whole reports after ``cursor``, in order per node, and the new cursor. A torn last one waits.

        Raises ``CouldNotLookError`` when the directory is there but cannot be read; before an agent has made it,
        there is nothing to read.
        """
        reports: list[NodeReport] = []
        positions = dict(cursor.positions)
        try:
            for path in self._files():
                found, positions[path.stem] = self._read_node(path, positions.get(path.stem, 0))
                reports += found
        except OSError as error:
            raise CouldNotLookError(f"cannot read the channel {self._root}: {error}; try again") from error
        return reports, ChannelCursor(positions=positions)

    def order_checkpoint(self) -> None:
        """Ask all ranks to save at the next step boundary. Repeating it costs one more save at most."""
        orders = self._orders()
        self._write("orders.json", {**orders, "checkpoint_seq": orders["checkpoint_seq"] + 1})

    def order_stop(self, *, reason: str) -> None:
        """Ask all ranks to save and exit 0 at the next step boundary."""
        self._write("orders.json", {**self._orders(), "stop": reason})

    def renew(self, *, until_s: float) -> None:
        """Let agents keep their ranks until ``until_s`` (Unix seconds)."""
        self._write("lease.json", {"v": _VERSION, "until_s": until_s})

    def lease_until_s(self) -> float | None:
        """Return until when agents may keep their ranks, None if that was never said. Raises ``CouldNotLookError``."""
        path = self._root / "down" / "lease.json"
        try:
            lease = read_json(path)
            return None if lease is None else float(lease["until_s"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CouldNotLookError(f"cannot read the lease {path}: {error}; try again") from error

    def last_sign_s(self) -> float | None:
        """Return when an agent last wrote, by its own clock or the file's, whichever is later; None before the first.

        Reads only the end of each file. Raises ``CouldNotLookError``.
        """
        try:
            return max((_last_sign_s(path) for path in self._files()), default=None)
        except OSError as error:
            raise CouldNotLookError(f"cannot read the channel {self._root}: {error}; try again") from error

    def _files(self) -> list[Path]:
        up = self._root / "up"
        if not up.exists():
            return []
        return sorted(path for path in up.iterdir() if path.suffix == _SUFFIX)

    def _read_node(self, path: Path, offset: int) -> tuple[list[NodeReport], int]:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_MAX_READ_BYTES)
        lines, consumed = whole_lines(data, limit_bytes=_MAX_READ_BYTES)
        reports = []
        for line in lines:
            report = _parse(line, node=path.stem)
            if report is None:
                self.num_corrupt += 1
                log.warning("channel %s: skipped a corrupt line of %d bytes: %.80r", path, len(line), line)
            else:
                reports.append(report)
        return reports, offset + consumed

    def _orders(self) -> dict[str, Any]:
        try:
            orders = read_json(self._root / "down" / "orders.json")
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read the orders in {self._root}: {error}; try again") from error
        return orders or {"v": _VERSION, "checkpoint_seq": 0, "stop": None}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._root / "down" / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, value)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; try again") from error


def _last_sign_s(path: Path) -> float:
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - _MAX_LAST_LINE_BYTES))
        lines, _ = whole_lines(file.read(), limit_bytes=_MAX_LAST_LINE_BYTES)
        written_s = os.fstat(file.fileno()).st_mtime
    reports = (_parse(line, node=path.stem) for line in reversed(lines))
    last = next((report for report in reports if report is not None), None)
    return written_s if last is None else max(written_s, last.at_s)


def _parse(line: bytes, *, node: str) -> NodeReport | None:
    """Return the report of one line; None for no report, or one that speaks for another node than its file's."""
    try:
        report = codec.from_json(NodeReport, line)
    except ValidationError:
        return None
    return report if report.node == node else None
