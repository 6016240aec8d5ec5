"""Folders of one node's attempt, on the machine's own disk and in its memory: what a launcher's killed processes leave.

They go with the attempt's processes. A supervisor that was killed with them removes nothing: whoever looks after
attempts on the machine next does it for the dead. Who is alive holds a lock on its folders, which the kernel lets go.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108  (the file system in memory of every Linux)
_SETTINGS = ("TMPDIR", "TEMP", "TMP")


class Scratch:
    """One node's folders. ``disk`` or ``memory`` is None where none can be made: programs then use what they find."""

    def __init__(self, *, disk: Path, memory: Path = MEMORY) -> None:
        clear_after_the_dead(disk, memory)
        self._locks: list[int] = []
        self.disk = self._made(disk)
        self.memory = self._made(memory)

    def remove(self) -> None:
        """Remove them and what is in them."""
        for path in (self.disk, self.memory):
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
        while self._locks:
            os.close(self._locks.pop())

    def _made(self, base: Path) -> Path | None:
        while True:
            try:
                # Short, and not below the attempt's own directory: that may be shared by machines, and far too long.
                path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=base))
            except OSError:
                return None
            try:
                lock = _lock(path)
            except FileNotFoundError:
                lock = None
            except OSError:  # a file system without locks: nobody could tell later whose it was
                path.rmdir()
                return None
            if lock is not None and path.exists():
                self._locks.append(lock)
                return path
            if lock is not None:
                os.close(lock)
            # Somebody took it for a dead one's in between.


def disk_of(environ: Mapping[str, str]) -> Path:
    """Return where programs of an environment put temporary files."""
    return Path(next((environ[name] for name in _SETTINGS if environ.get(name)), tempfile.gettempdir()))


def clear_after_the_dead(*bases: Path) -> None:
    """Remove this machine's and user's folders whose supervisor is gone; what cannot be removed stays."""
    for path in (path for base in bases for path in base.glob(f"{_prefix()}*")):
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is None:
                continue
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds the folder's lock; None when somebody else does. Raises ``OSError``."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock


def _prefix() -> str:
    """Begin a name with the machine's: it may share a disk with others, whose locks it does not see."""
    return f"llmsched-{zlib.crc32(socket.gethostname().encode()):08x}-"
