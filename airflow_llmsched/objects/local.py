"""Object store on a local or shared folder. Standard library only; safe on NFS, where ``O_EXCL`` is not enough."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, StoreError
from airflow_llmsched.objects.keys import TEMP_PREFIX, check_folder, check_key, check_prefix
from airflow_llmsched.ports import ObjectInfo

_FOLDER = EffectPoint("objects.local.folder")
_TEMPORARY = EffectPoint("objects.local.temporary")
_LINK = EffectPoint("objects.local.link")
_REPLACE = EffectPoint("objects.local.replace")
_TIDY = EffectPoint("objects.local.tidy")
_DELETE = EffectPoint("objects.local.delete")

_DELETED_WHILE_READ = re.compile(r"\.nfs[0-9a-f]{24}")
"""What an NFS client calls a file that is deleted while somebody has it open (Linux, ``fs/nfs/unlink.c``)."""

_NO_OBJECT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

_NEXT_STEP = {
    errno.ENOSPC: "the disk is full: free space there, then try again; nothing was changed",
    errno.EDQUOT: "the quota is used up: free space there, then try again; nothing was changed",
    errno.EACCES: "check the owner and the permissions of the folder",
    errno.EPERM: "check the owner and the permissions, and that the file system has hard links",
    errno.EOPNOTSUPP: "the file system has no hard links: use an object store URI or another folder",
    errno.EROFS: "the file system is mounted read-only: remount it or use another folder",
    errno.ESTALE: "the share was remounted or replaced: check the mount, then try again",
    errno.EEXIST: "a key cannot also be the folder of other keys in a folder store: choose another key",
    errno.EISDIR: "a key cannot also be the folder of other keys in a folder store: choose another key",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away or use another folder",
    errno.ELOOP: "symbolic links lead in a circle: remove the link",
}


class LocalStore:
    """``ports.ObjectStore`` whose objects are the files below ``root``. A root that does not exist yet is empty.

    A write is a temporary file in the target's folder, fsynced, then linked (create-only) or renamed (overwrite) into
    place, then the folder is fsynced: readers see all of an object or none of it, also after a power cut. Linked files
    are objects; linked folders are not listed, so that a link loop cannot trap a listing.
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()

    @property
    def uri(self) -> str:
        """Return ``file://`` and the absolute path."""
        return self._root.as_uri()

    def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises ``ObjectMissingError``, ``StoreError``."""
        path = self._path(key)
        try:
            return path.read_bytes()
        except _NO_OBJECT as error:
            self._require_folder_root("read", key)
            raise ObjectMissingError(f"no object {key!r} in {self.uri}") from error
        except OSError as error:
            raise self._store_error("read", key, error) from error

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite atomically. Raises ``StoreError``."""
        self._write(key, data, _replace)

    def create(self, key: str, data: bytes) -> None:
        """Write only if absent, durably. Raises ``ObjectExistsError`` when another writer was first, ``StoreError``."""
        path = self._path(key)
        try:
            self._write(key, data, _link)
        except _TargetExistsError as error:
            if path.is_dir():
                raise self._store_error("create", key, OSError(errno.EISDIR, os.strerror(errno.EISDIR))) from error
            raise self._exists(key) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield objects whose key starts with ``prefix``, in key order. Raises ``StoreError`` while it is iterated."""
        folder, slash, _ = check_prefix(prefix).rpartition("/")
        return self._walk(self._root / folder, folder + slash, prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names directly below ``prefix`` that hold objects, in order. Raises ``StoreError``.

        Each is searched only until its first object is found; an emptied folder is none.
        """
        folder = self._root / check_folder(prefix)
        return (
            entry.name
            for entry, is_folder in sorted(self._scan(folder, prefix), key=lambda row: row[0].name)
            if is_folder and not entry.name.startswith(TEMP_PREFIX) and self._holds_objects(entry, prefix)
        )

    def delete(self, key: str) -> None:
        """Delete; silent when absent. Raises ``StoreError``."""
        path = self._path(key)
        try:
            if path.is_dir():  # a folder of other keys, so no object of this name
                return
            with _DELETE:
                path.unlink()
            _sync_folder(path.parent)
        except _NO_OBJECT:
            self._require_folder_root("delete", key)
        except OSError as error:
            raise self._store_error("delete", key, error) from error

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _write(self, key: str, data: bytes, publish: Callable[[Path, Path], object]) -> None:
        path = self._path(key)
        temp = path.with_name(TEMP_PREFIX + uuid.uuid4().hex)
        try:
            _ensure_folder(path.parent)
            try:
                _write_synced(temp, data)
                publish(temp, path)
            finally:
                # After a rename there is nothing left to remove; after a link the second name goes.
                with contextlib.suppress(OSError), _TIDY:
                    temp.unlink(missing_ok=True)
            _sync_folder(path.parent)
        except _TargetExistsError:
            raise
        except OSError as error:
            raise self._store_error("write", key, error) from error

    def _holds_objects(self, entry: os.DirEntry[str], prefix: str) -> bool:
        key = f"{prefix}{entry.name}/"
        return next(self._walk(Path(entry.path), key, key), None) is not None

    def _scan(self, folder: Path, prefix: str) -> Sequence[tuple[os.DirEntry[str], bool]]:
        """Return a folder's entries and whether each is a folder itself; none when it is absent."""
        try:
            return [(entry, entry.is_dir(follow_symlinks=False)) for entry in os.scandir(folder)]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            self._require_folder_root("list", prefix)
            return []
        except OSError as error:
            raise self._store_error("list", prefix, error) from error

    def _walk(self, folder: Path, folder_key: str, prefix: str) -> Iterator[ObjectInfo]:
        entries = self._scan(folder, prefix)
        # "a-b" comes before "a/b", so a folder sorts with its slash.
        for key, entry, is_folder in sorted(
            ((folder_key + entry.name + "/" * is_folder, entry, is_folder) for entry, is_folder in entries),
            key=lambda row: row[0],
        ):
            if entry.name.startswith(TEMP_PREFIX) or _DELETED_WHILE_READ.fullmatch(entry.name):
                continue
            if is_folder:
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(folder / entry.name, key, prefix)
            elif key.startswith(prefix):
                info = self._info(key, entry)
                if info is not None:
                    yield info

    def _info(self, key: str, entry: os.DirEntry[str]) -> ObjectInfo | None:
        try:
            if not entry.is_file():
                return None
            stat = entry.stat()
        except FileNotFoundError:  # deleted since the folder was read
            return None
        except OSError as error:
            raise self._store_error("list", key, error) from error
        return ObjectInfo(key=key, num_bytes=stat.st_size, modified_s=stat.st_mtime)

    def _require_folder_root(self, action: str, key: str) -> None:
        # A root that is a file, or whose parent cannot be searched, proves nothing about the object.
        try:
            os.scandir(self._root).close()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._store_error(action, key, error) from error

    def _exists(self, key: str) -> ObjectExistsError:
        return ObjectExistsError(f"object {key!r} already exists in {self.uri}")

    def _store_error(self, action: str, key: str, error: OSError) -> StoreError:
        next_step = _NEXT_STEP.get(error.errno or 0, "check that the folder is mounted and healthy, then try again")
        return StoreError(f"cannot {action} {key!r} in {self.uri}: {error.strerror or error}; {next_step}")


class _TargetExistsError(Exception):
    """The create-only name is taken. Apart from ``OSError``, so that a clash on a folder is not taken for it."""


@_REPLACE
def _replace(temp: Path, path: Path) -> None:
    temp.replace(path)


@_LINK
def _link(temp: Path, path: Path) -> None:
    try:
        os.link(temp, path)
    except FileExistsError as error:
        # NFS may have done it and lost the answer: then the retry meets its own link, and the file has two names.
        if temp.stat().st_nlink != 2:
            raise _TargetExistsError from error


@_TEMPORARY
def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _ensure_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _ensure_folder(folder.parent)
    with _FOLDER:
        folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
