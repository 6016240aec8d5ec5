"""Control's end of the run channel over a shared directory.

It reads ``up/<node>.jsonl`` and writes orders and lease to ``down/``; the other end is ``agent.supervisor``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.agent.link import LEASE, ORDERS, REVOKED
from airflow_llmsched.agent.spool import create_json, read_json, whole_lines, write_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import CouldNotLookError, StoreError
from airflow_llmsched.telemetry.down import EXTENSIONS, NO_ORDERS, extension_name, last_lease_end_s

log = logging.getLogger(__name__)

_VERSION = 1
_SUFFIX = ".jsonl"
_MAX_READ_BYTES = 4 * 1024 * 1024
"""Per node and call. Whoever was away catches up in several reads, in bounded memory."""


class DirectoryChannel:
    """A ``RunChannel``. Positions of its cursor are byte offsets. ``num_corrupt`` counts lines it had to skip."""

    def __init__(self, channel_root: str) -> None:
        self._root = Path(channel_root)
        self.num_corrupt = 0

    def prepare(self, nodes: Sequence[NodeId], *, at_s: float) -> None:
        """Do nothing: agents find the directory by its path."""

    def tend(self, cursor: ChannelCursor, *, at_s: float) -> None:
        """Do nothing: a directory does not wear out."""

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
        self._write(ORDERS, {**orders, "checkpoint_seq": orders["checkpoint_seq"] + 1})

    def order_stop(self, *, reason: str) -> None:
        """Ask all ranks to save and exit 0 at the next step boundary."""
        self._write(ORDERS, {**self._orders(), "stop": reason})

    def order_interval(self, *, interval_s: float) -> None:
        """Ask the trainer to save every ``interval_s`` seconds from now on."""
        self._write(ORDERS, {**self._orders(), "checkpoint_interval_s": interval_s})

    def renew(self, *, until_s: float) -> None:
        """Let agents keep their ranks until ``until_s`` (Unix seconds)."""
        self._write(LEASE, {"v": _VERSION, "until_s": until_s})

    def extend(self, *, until_s: float) -> None:
        """Renew for as long as a hand-over may take, noting it first: leases are overwritten, notes never."""
        path = self._path(extension_name(until_s))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            create_json(path, {"v": _VERSION, "until_s": until_s})
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; try again") from error
        self.renew(until_s=until_s)

    def revoke(self, *, at_s: float, lease_s: float) -> float:
        """Have agents honour no renewal from now on; return when the last one they can have honoured ends."""
        path = self._path(REVOKED)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            create_json(path, {"v": _VERSION, "at_s": at_s})
            revoked = read_json(path)
            notes = [read_json(note) for note in self._notes()]
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot revoke the lease in {self._root}: {error}; try again") from error
        return last_lease_end_s(revoked, notes, lease_s=lease_s)

    def _notes(self) -> list[Path]:
        folder = self._root / "down" / EXTENSIONS
        return [path for path in folder.iterdir() if path.suffix == ".json"] if folder.exists() else []

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
            orders = read_json(self._path(ORDERS))
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read the orders in {self._root}: {error}; try again") from error
        return orders or dict(NO_ORDERS)

    def _path(self, name: str) -> Path:
        return self._root / "down" / f"{name}.json"

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, value)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; try again") from error


def _parse(line: bytes, *, node: str) -> NodeReport | None:
    """Return the report of one line; None for no report, or one that speaks for another node than its file's."""
    try:
        report = codec.from_json(NodeReport, line)
    except ValidationError:
        return None
    return report if report.node == node else None
