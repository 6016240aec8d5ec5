"""What a legal bucket URI is. Pure, and apart from the adapter, so that checking one does not load it."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow_llmsched.errors import SpecError

BUCKET_SCHEMES = frozenset({"s3", "gs", "az", "memory"})


def check_bucket_uri(uri: str) -> str:
    """Return ``uri`` without its trailing slash when it names a bucket and nothing else. Raises ``SpecError``."""
    parts = urlsplit(uri)
    if parts.scheme not in BUCKET_SCHEMES:
        known = ", ".join(sorted(BUCKET_SCHEMES))
        raise SpecError(path="uri", value=uri, hint=f"must start with one of {known}, then ://")
    if "@" in parts.netloc:
        # The value is left out: it may be a secret.
        raise SpecError(path="uri", hint="must not hold credentials: hand them down as config")
    if parts.query or parts.fragment:
        raise SpecError(path="uri", value=uri, hint="must not hold a query or a fragment: hand settings down as config")
    if parts.scheme != "memory" and not parts.netloc:
        raise SpecError(path="uri", value=uri, hint=f"must name a bucket: {parts.scheme}://bucket/prefix")
    return uri.rstrip("/") if parts.netloc else uri
