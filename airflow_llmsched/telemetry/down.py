"""What control writes down a channel, in either form of it: orders, leases, hand-over notes, the revocation. Pure.

A lease is overwritten by every longer renewal, by whoever watches. Of two at once one may be lost, so its object does
not tell what an agent may have read before. What bounds it: a renewal lasts a lease's length from when it is written,
anything longer is noted first in an object of its own, and agents honour none that they find after the revocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_llmsched.errors import StoreError

VERSION = 1

NO_ORDERS: Mapping[str, Any] = {"v": VERSION, "checkpoint_seq": 0, "stop": None, "checkpoint_interval_s": None}
"""What holds before control has ordered anything."""

EXTENSIONS = "extensions"


def extension_name(until_s: float) -> str:
    """Return the name of the note of an extension until then."""
    return f"{EXTENSIONS}/{round(until_s * 1000):015d}"


def last_lease_end_s(
    revoked: Mapping[str, Any] | None, notes: Iterable[Mapping[str, Any] | None], *, lease_s: float
) -> float:
    """Return when the last lease ends that an agent can have honoured. Raises ``StoreError`` for damaged records."""
    try:
        ends = [float(note["until_s"]) for note in notes if note is not None]
        return max([float((revoked or {})["at_s"]) + lease_s, *ends])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the revocation of a channel is damaged ({error!r}): look at its down folder") from error
