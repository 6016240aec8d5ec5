"""Checks what ``torch.save`` wrote, without torch: a zip archive whose entries carry a CRC-32. Nothing is unpickled."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from airflow_llmsched.checkpoints.dcp_metadata import StoredItem
from airflow_llmsched.checkpoints.scan import Torn, looking_at

_ZIP_MAGIC = b"PK\x03\x04"
_MAX_THREADS = 8
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError)


def check_archive(directory: Path, name: str, *, content: bool) -> None:
    """Raise ``Torn`` when the ``torch.save`` file is cut short or, with ``content``, an entry fails its checksum.

    Files in torch's format of before 1.6 are no archives and pass unchecked.
    """
    with looking_at(directory / name), (directory / name).open("rb") as file:
        if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
            problem = _problem(file, content=content)
            if problem:
                raise Torn(f"{name} {problem}")


def check_items(directory: Path, items: Sequence[StoredItem]) -> None:
    """Raise ``Torn`` naming the file and offset of the first stored item that cannot be read or fails its checksum.

    A tensor is an archive, or safetensors, which have no checksum. Objects in other forms, and what an extension has
    encoded, cannot be judged and pass.
    """
    plain = [item for item in items if not item.transformed and item.num_bytes]
    with ThreadPoolExecutor(max_workers=_MAX_THREADS) as pool:
        for item, problem in zip(plain, pool.map(lambda item: _item_problem(directory, item), plain), strict=True):
            if problem:
                raise Torn(f"{item.path} at byte {item.offset_bytes} {problem}")


def _item_problem(directory: Path, item: StoredItem) -> str | None:
    path = directory / item.path
    with looking_at(path), path.open("rb", buffering=0) as file:
        window = _Window(file, item.offset_bytes, item.num_bytes)
        start = window.read(9) or b""
        if not start.startswith(_ZIP_MAGIC):
            # A safetensors item starts with the 8 bytes of its header's length, then the header, which is JSON.
            is_safetensors = int.from_bytes(start[:8], "little") <= item.num_bytes and start[8:] == b"{"
            return None if is_safetensors or not item.tensor else "is neither an archive of torch.save nor safetensors"
        return _problem(io.BufferedReader(window, buffer_size=2**20), content=True)


def _problem(file: io.BufferedIOBase, *, content: bool) -> str | None:
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip() if content else None
    except _BAD_ZIP as error:
        return f"is no whole archive of torch.save: {error}"
    return f"holds damaged bytes: {bad} does not match its checksum" if bad else None


class _Window(io.RawIOBase):
    """Part of a file, as a file."""

    def __init__(self, file: io.RawIOBase, offset_bytes: int, num_bytes: int) -> None:
        self._file, self._offset_bytes, self._num_bytes, self._at = file, offset_bytes, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = base + offset  # the BufferedReader around it refuses a negative one
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._num_bytes - self._at))
        self._file.seek(self._offset_bytes + self._at)
        got = self._file.readinto(memoryview(buffer)[:count]) or 0
        self._at += got
        return got
