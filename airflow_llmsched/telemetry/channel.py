"""Control's end of the run channel over a shared directory.

It reads ``up/<node>.jsonl`` and writes orders and lease to ``down/``; the other end is ``agent.supervisor``.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.agent.link import LEASE, ORDERS, REVOKED, until_of
from airflow_llmsched.agent.spool import create_json, read_json, whole_lines, write_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError, StoreError
from airflow_llmsched.telemetry.down import EXTENSIONS, NO_ORDERS, extension_name, last_lease_end_s

log = logging.getLogger(__name__)

_WRITE = EffectPoint("channel.directory.write")
_NOTE = EffectPoint("channel.directory.note_extension")
_REVOKE = EffectPoint("channel.directory.revoke")

_VERSION = 1
_SUFFIX = ".jsonl"
_MAX_READ_BYTES = 4 * 1024 * 1024
"""Per node and call. Whoever was away catches up in several reads, in bounded memory."""

_TAIL_BYTES = 4 * 1024
"""What is read of a file's end first, in search of its last whole report."""

_RECENT_BYTES = 256 * 1024
"""What is read of a file's end where the newest reports are wanted: of one node some hundred."""

_MAX_LAST_LINE_BYTES = 64 * 1024


class DirectoryChannel:
    """A ``RunChannel`` and a ``ChannelWitness``. Positions of its cursor are byte offsets.

    ``num_corrupt`` counts lines it had to skip.
    """

    def __init__(self, channel_root: str) -> None:
        self._root = Path(channel_root)
        self._up = str(self._root / "up")
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
            for node in _nodes_in(self._up):
                path = Path(self._up, node + _SUFFIX)
                found, positions[node] = self._read_node(path, positions.get(node, 0))
                reports += found
        except OSError as error:
            raise CouldNotLookError(f"cannot read the channel {self._root}: {error}; try again") from error
        return reports, ChannelCursor(positions=positions)

    def latest(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return the newest whole report of each node that has one after ``cursor``, and the new cursor.

        Costs the same however much was written meanwhile. Raises ``CouldNotLookError`` as ``read`` does.
        """
        reports: list[NodeReport] = []
        positions = dict(cursor.positions)
        try:
            for node in _nodes_in(self._up):
                report, positions[node] = self._newest(node, positions.get(node, 0))
                if report is not None:
                    reports.append(report)
        except OSError as error:
            raise CouldNotLookError(f"cannot read the channel {self._root}: {error}; try again") from error
        return reports, ChannelCursor(positions=positions)

    def recent(self) -> Sequence[NodeReport]:
        """Return the newest whole reports of each node, as ``ports.RecentChannel`` has it."""
        reports: list[NodeReport] = []
        try:
            for node in _nodes_in(self._up):
                path = Path(self._up, node + _SUFFIX)
                reports += self._read_node(path, _line_after(path, path.stat().st_size - _RECENT_BYTES))[0]
        except OSError as error:
            raise CouldNotLookError(f"cannot read the channel {self._root}: {error}; try again") from error
        return reports

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
        """Let agents keep their ranks until ``until_s`` (Unix seconds). Never shortens: an extension may be unread."""
        with contextlib.suppress(OSError, ValueError):  # what nobody can read is to be replaced
            if (until_of(read_json(self._path(LEASE))) or 0.0) >= until_s:
                return
        self._write(LEASE, {"v": _VERSION, "until_s": until_s})

    def extend(self, *, until_s: float) -> None:
        """Renew for as long as a hand-over may take, noting it first: leases are overwritten, notes never."""
        path = self._path(extension_name(until_s))
        try:
            with _NOTE:
                path.parent.mkdir(parents=True, exist_ok=True)
                create_json(path, {"v": _VERSION, "until_s": until_s})
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; try again") from error
        self.renew(until_s=until_s)

    def revoke(self, *, at_s: float, lease_s: float) -> float:
        """Have agents honour no renewal from now on; return when the last one they can have honoured ends."""
        path = self._path(REVOKED)
        try:
            with _REVOKE:
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
            up = self._root / "up"
            return max((_last_sign_s(up / f"{node}{_SUFFIX}") for node in _nodes_in(str(up))), default=None)
        except OSError as error:
            raise CouldNotLookError(f"cannot read the channel {self._root}: {error}; try again") from error

    def _read_node(self, path: Path, offset: int) -> tuple[list[NodeReport], int]:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_MAX_READ_BYTES)
        lines, consumed = whole_lines(data, limit_bytes=_MAX_READ_BYTES)
        reports = []
        for line in lines:
            report = self._parse(line, node=path.stem)
            if report is not None:
                reports.append(report)
        return reports, offset + consumed

    def _newest(self, node: str, offset: int) -> tuple[NodeReport | None, int]:
        """Return the last whole report after ``offset``, and where it ends. Reads from the end, further if it must."""
        fd = os.open(f"{self._up}/{node}{_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = os.fstat(fd).st_size
            length = _TAIL_BYTES
            while offset < end:
                start = max(offset, end - length)
                data = os.pread(fd, end - start, start)
                first = 0 if start == offset else data.find(b"\n") + 1  # a line may have begun before the tail
                last = above = data.rfind(b"\n") + 1
                while above > first:
                    below = data.rfind(b"\n", first, above - 1) + 1 or first
                    line, above = data[below : above - 1], below
                    if line.strip() and (report := self._parse(line, node=node)) is not None:
                        return report, start + last
                if start == offset or length >= _MAX_READ_BYTES:
                    return None, start + last if last or start == offset else end
                length *= 8
        finally:
            os.close(fd)
        return None, offset

    def _parse(self, line: bytes, *, node: str) -> NodeReport | None:
        report = _parse(line, node=node)
        if report is None:
            self.num_corrupt += 1
            path = f"{self._up}/{node}{_SUFFIX}"
            log.warning("channel %s: skipped a corrupt line of %d bytes: %.80r", path, len(line), line)
        return report

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
            with _WRITE:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, value)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; try again") from error


def open_witness(channel_root: str) -> DirectoryChannel:
    """Return what witnesses the channel below ``channel_root``, for the reaper.

    Raises ``CouldNotLookError`` for a channel in a bucket, whose agents' silence this does not show.
    """
    if "://" in channel_root:
        raise CouldNotLookError(
            f"channel {channel_root} is in a bucket: stop its gang by the run's release task instead"
        )
    return DirectoryChannel(channel_root)


def _last_sign_s(path: Path) -> float:
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - _MAX_LAST_LINE_BYTES))
        lines, _ = whole_lines(file.read(), limit_bytes=_MAX_LAST_LINE_BYTES)
        written_s = os.fstat(file.fileno()).st_mtime
    reports = (_parse(line, node=path.stem) for line in reversed(lines))
    last = next((report for report in reports if report is not None), None)
    return written_s if last is None else max(written_s, last.at_s)


def _nodes_in(up: str) -> list[str]:
    """Return the nodes that have written, sorted; none before an agent has made the folder."""
    try:
        with os.scandir(up) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def _parse(line: bytes, *, node: str) -> NodeReport | None:
    """Return the report of one line; None for no report, or one that speaks for another node than its file's."""
    try:
        report = codec.from_json(NodeReport, line)
    except ValidationError:
        return None
    return report if report.node == node else None


def _line_after(path: Path, offset: int) -> int:
    """Return where the first line begins that does so at ``offset`` or later."""
    if offset <= 0:
        return 0
    with path.open("rb") as file:
        file.seek(offset - 1)
        file.readline(_MAX_READ_BYTES)
        return file.tell()
