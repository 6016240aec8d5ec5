"""Which store serves which URI."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.objects.uris import BUCKET_SCHEMES
from airflow_llmsched.ports import ObjectStore


def open_store(uri: str, **options: Any) -> ObjectStore:
    """Open the store at ``uri``: a plain path or ``file://`` is a folder, ``s3://``, ``gs://``, ``az://`` a bucket.

    ``options`` are those of :class:`~airflow_llmsched.objects.remote.RemoteStore`; a folder takes none.

    Raises:
        SpecError: the URI names no known store, or an option does not fit it.
    """
    if not uri:
        raise SpecError(path="uri", value=uri, hint="must be a folder or a URI such as s3://bucket/prefix")
    if "://" not in uri:
        return _open_folder(uri, uri, options)
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise SpecError(path="uri", value=uri, hint="must have three slashes: file:///folder")
        return _open_folder(uri, url2pathname(parts.path), options)
    if parts.scheme not in BUCKET_SCHEMES:
        known = ", ".join(sorted({"file", *BUCKET_SCHEMES}))
        raise SpecError(path="uri", value=uri, hint=f"has an unknown scheme; known are {known}, and plain folders")
    from airflow_llmsched.objects.remote import RemoteStore  # noqa: PLC0415  # loads obstore: not for folders

    return RemoteStore(uri, **options)


def _open_folder(uri: str, folder: str, options: dict[str, Any]) -> LocalStore:
    if options:
        raise SpecError(
            path="uri", value=uri, hint=f"is a folder and takes no options, got {', '.join(sorted(options))}"
        )
    return LocalStore(folder)
