"""Object store on S3, Google Cloud Storage, Azure Blob Storage or memory, through obstore. Credentials are handed down.

Importing this loads obstore (10 MB of machine code); ``objects.open`` imports it only for a bucket.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import MemoryStore, from_url

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, SpecError, StoreError
from airflow_llmsched.objects.keys import check_folder, check_key, check_prefix
from airflow_llmsched.objects.uris import check_bucket_uri
from airflow_llmsched.ports import ObjectInfo

T = TypeVar("T")

_PUT = EffectPoint("objects.remote.put")
_CREATE = EffectPoint("objects.remote.create")
_DELETE = EffectPoint("objects.remote.delete")

# Letters only: Azure wants a C# identifier, and some proxies drop headers with an underscore.
_WRITER = "llmschedwriter"

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
_DENIED = ("PermissionDeniedError", "UnauthenticatedError")
_MAX_DETAIL_CHARS = 300


class RemoteStore:
    """``ports.ObjectStore`` on a bucket, below an optional prefix: ``s3://bucket/prefix``, ``gs://``, ``az://``.

    ``memory://`` is private to the instance. ``config`` goes to obstore as it is (``aws_endpoint``,
    ``aws_access_key_id``, ...), never into a message; ``client_options`` too (``allow_http``, proxies, certificates).
    A request takes at most ``request_limit_s``; a call tries again until ``retry_limit_s`` have passed.
    """

    def __init__(
        self,
        uri: str,
        *,
        config: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        request_limit_s: float = 30.0,
        retry_limit_s: float = 60.0,
        max_retries: int = 5,
    ) -> None:
        self._uri = check_bucket_uri(uri)
        client = {"timeout": timedelta(seconds=request_limit_s), **(client_options or {})}
        retry = {"max_retries": max_retries, "retry_timeout": timedelta(seconds=retry_limit_s)}
        self._store = _open(uri, dict(config or {}), client, retry)

    @property
    def uri(self) -> str:
        """Return the URI this store was opened with, without a trailing slash."""
        return self._uri

    def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises ``ObjectMissingError``, ``StoreError`` (also for an absent bucket)."""
        check_key(key)
        return self._call("read", key, lambda: bytes(obstore.get(self._store, key).bytes()))

    @_PUT
    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite atomically. Raises ``StoreError``."""
        check_key(key)
        try:
            self._call("write", key, lambda: obstore.put(self._store, key, data))
        except ObjectMissingError as error:  # nothing else than the bucket can be missing
            raise StoreError(str(error)) from error

    @_CREATE
    def create(self, key: str, data: bytes) -> None:
        """Write only if absent. Raises ``ObjectExistsError``, or ``StoreError`` when the outcome could not be learned.

        The object carries a mark of its writer: when an answer is lost and the repetition is refused because the
        object exists, the mark tells whether it is ours.
        """
        check_key(key)
        mark = uuid.uuid4().hex
        try:
            self._call(
                "create",
                key,
                lambda: obstore.put(self._store, key, data, mode="create", attributes={_WRITER: mark}),
                let=AlreadyExistsError,
            )
        except AlreadyExistsError as error:
            if self._writer(key) != mark:
                raise ObjectExistsError(f"object {key!r} already exists in {self._uri}") from error
        except (StoreError, ObjectMissingError) as error:
            if not self._is_ours(key, mark):
                raise StoreError(str(error)) from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield objects whose key starts with ``prefix``, in key order. Raises ``StoreError``.

        Stores list by whole folders, so ``a/b`` reads all of ``a/``: end prefixes with a slash where it matters.
        """
        folder = check_prefix(prefix).rpartition("/")[0]
        try:
            rows = self._call("list", prefix, lambda: self._list(folder))
        except ObjectMissingError as error:  # an absent bucket, in the words of some stores
            raise StoreError(str(error)) from error
        return iter(sorted((row for row in rows if row.key.startswith(prefix)), key=lambda row: row.key))

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names directly below ``prefix`` that hold objects, in order. Raises ``StoreError``."""
        folder = check_folder(prefix).rstrip("/")
        try:
            listed = self._call("list", prefix, lambda: obstore.list_with_delimiter(self._store, prefix=folder or None))
        except ObjectMissingError as error:  # an absent bucket, in the words of some stores
            raise StoreError(str(error)) from error
        return iter(sorted(path.removeprefix(prefix).rstrip("/") for path in listed["common_prefixes"]))

    @_DELETE
    def delete(self, key: str) -> None:
        """Delete; silent when absent. Raises ``StoreError``."""
        check_key(key)
        try:
            self._call("delete", key, lambda: obstore.delete(self._store, key))
        except ObjectMissingError:
            return

    def presign(self, method: Literal["GET", "PUT"], keys: Sequence[str], *, lifetime_s: float) -> Sequence[str]:
        """Return a URL for each key, good for ``method`` and ``lifetime_s`` (at most 7 days on S3). They are secrets.

        Credentials that end earlier end their URLs too. Raises ``StoreError``; ``SpecError`` for a store without URLs.
        """
        if isinstance(self._store, MemoryStore):
            raise SpecError(path="uri", value=self._uri, hint="is no store that others can reach: it has no URLs")
        for key in keys:
            check_key(key)
        sign: Any = obstore.sign
        lifetime = timedelta(seconds=lifetime_s)
        return self._call(
            "presign", keys[0] if keys else "", lambda: list(sign(self._store, method, list(keys), lifetime))
        )

    def _list(self, folder: str) -> Sequence[ObjectInfo]:
        return [
            ObjectInfo(key=row["path"], num_bytes=row["size"], modified_s=row["last_modified"].timestamp())
            for rows in obstore.list(self._store, prefix=folder or None)
            for row in rows
        ]

    def _writer(self, key: str) -> str | None:
        try:
            return self._call("read", key, lambda: obstore.get(self._store, key).attributes.get(_WRITER))
        except ObjectMissingError:
            return None

    def _is_ours(self, key: str, mark: str) -> bool:
        try:
            return self._writer(key) == mark
        except StoreError:
            return False

    def _call(self, action: str, key: str, call: Callable[[], T], *, let: type[Exception] | tuple[()] = ()) -> T:
        try:
            return call()
        except let:
            raise
        except FileNotFoundError as error:
            if any(word in str(error) for word in _NO_BUCKET):
                raise self._store_error(action, key, error) from None
            raise ObjectMissingError(f"no object {key!r} in {self._uri}") from None
        except (BaseError, OSError, ValueError) as error:
            raise self._store_error(action, key, error) from None

    def _store_error(self, action: str, key: str, error: Exception) -> StoreError:
        if any(word in str(error) for word in _NO_BUCKET):
            return StoreError(f"cannot {action} {key!r} in {self._uri}: no such bucket; create it or correct the URI")
        if type(error).__name__ in _DENIED:
            next_step = "check the credentials and what they may do on this bucket"
        else:
            next_step = "check endpoint, region and network, then try again"
        # Later lines are a dump of the request; the first says what happened.
        detail = str(error).partition("\n")[0][:_MAX_DETAIL_CHARS]
        return StoreError(f"cannot {action} {key!r} in {self._uri}: {detail}; {next_step}")


def _open(uri: str, config: dict[str, Any], client: dict[str, Any], retry: dict[str, Any]) -> Any:
    if urlsplit(uri).scheme == "memory":
        return MemoryStore()
    opener: Any = from_url
    try:
        return opener(uri, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, TypeError) as error:
        # The first line names the setting; what follows may show its value.
        hint = str(error).partition("\n")[0][:_MAX_DETAIL_CHARS]
        raise SpecError(path="uri", value=uri, hint=f"cannot open it with these settings: {hint}") from None
