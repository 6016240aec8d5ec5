"""What an engine says when it could not look, however the look failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow_llmsched.errors import CouldNotLookError, DataError


@contextlib.contextmanager
def looking(engine: str, what: str) -> Iterator[None]:
    """Turn unreadable files, records and answers into "could not look", naming the engine and what it was about.

    Absence is what a look that succeeded did not find, and nothing else. Raises ``CouldNotLookError``.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise CouldNotLookError(f"{engine} engine: {what}: {error}; look again before doing anything else") from error
