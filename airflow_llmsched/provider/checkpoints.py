"""What sensors and triggers ask of checkpoint formats, in JSON-safe form."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_llmsched.codec import to_plain
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.registry import AdapterGroup, load

log = logging.getLogger(__name__)


def newest_complete(path: str | Sequence[str], format_name: str, min_step: int) -> dict[str, Any] | None:
    """Return the newest complete checkpoint below ``path`` if its step is at least ``min_step``, else None.

    Newest is the highest step of the latest attempt that has a complete one: what earlier attempts have above it, the
    run has given up. What lies in the root itself counts beside it. Of several roots, the highest step wins.

    ``path`` is one root (a string, never a list of letters) or several. A root that cannot be read is logged and counts
    as "not seen yet": waiting is what a sensor is for.
    """
    format_ = load(AdapterGroup.CHECKPOINT_FORMATS, format_name)()
    best = None
    for root in [path] if isinstance(path, str) else path:
        try:
            ref = _newest(format_.scan(root))
        except CouldNotLookError as error:
            log.warning("cannot look for checkpoints now, will look again: %s", error)
            continue
        if ref is not None and ref.step >= min_step and (best is None or ref.step > best.step):
            best = ref
    return None if best is None else to_plain(best)


def _newest(refs: Iterable[CheckpointRef]) -> CheckpointRef | None:
    """``refs`` come highest step first, of one step the later attempt's first."""
    complete = [ref for ref in refs if ref.complete]
    latest = max((ref.saved_by for ref in complete if ref.saved_by is not None), default=None)
    return next((ref for ref in complete if ref.saved_by in (latest, None)), None)
