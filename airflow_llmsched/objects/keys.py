"""What a legal object key is, the same on every store. Pure."""

from __future__ import annotations

from airflow_llmsched.errors import SpecError

TEMP_PREFIX = ".llmsched-tmp-"
"""Names that start like this are half-written files of a folder store; no key may use them."""

_MAX_PART_BYTES = 255  # NAME_MAX of Linux file systems
_MAX_KEY_BYTES = 1024  # the limit of S3 and of Google Cloud Storage


def check_key(key: str) -> str:
    """Return ``key`` when every store can hold it (``a/b/c``). Raises ``SpecError``."""
    if not key:
        raise SpecError(path="key", value=key, hint="must not be empty")
    _check_parts(key, key.split("/"))
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` when it can begin a key: empty, ``a/``, ``a/b``. Raises ``SpecError``."""
    *folders, last = prefix.split("/")
    _check_parts(prefix, [*folders, last] if last else folders)
    return prefix


def check_folder(prefix: str) -> str:
    """Return ``prefix`` when it names a folder: empty for the root, or ending with a slash. Raises ``SpecError``."""
    if prefix and not prefix.endswith("/"):
        raise SpecError(path="prefix", value=prefix, hint="must be empty or end with a slash to name a folder")
    return check_prefix(prefix)


def _check_parts(key: str, parts: list[str]) -> None:
    problem = None
    if len(_utf8(key)) > _MAX_KEY_BYTES:
        problem = f"must not be longer than {_MAX_KEY_BYTES} bytes"
    for part in parts:
        if not part:
            problem = "must not start with a slash, end with one, or hold two in a row"
        elif part in (".", ".."):
            problem = f"must not hold the part {part!r}: keys never leave the store's root"
        elif part.startswith(TEMP_PREFIX):
            problem = f"must not hold a part that starts with {TEMP_PREFIX!r}: such names mark unfinished writes"
        elif any(ord(char) < 32 or ord(char) == 127 for char in part):
            problem = "must not hold control characters"
        elif len(_utf8(part)) > _MAX_PART_BYTES:
            problem = f"must not hold a part longer than {_MAX_PART_BYTES} bytes"
    if problem:
        raise SpecError(path="key", value=key, hint=problem)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(path="key", value=text, hint="must be valid Unicode") from error
