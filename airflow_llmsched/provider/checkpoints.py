"""What sensors and triggers ask of checkpoint formats, in JSON-safe form."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from airflow_llmsched.codec import to_plain
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.registry import AdapterGroup, load

log = logging.getLogger(__name__)


def newest_complete(path: str | Sequence[str], format_name: str, min_step: int) -> dict[str, Any] | None:
    """Return the complete checkpoint of the highest step below ``path`` that is at least ``min_step``, or None.

    ``path`` is one root (a string, never a list of letters) or several. A root that cannot be read is logged and counts
    as "not seen yet": waiting is what a sensor is for.
    """
    format_ = load(AdapterGroup.CHECKPOINT_FORMATS, format_name)()
    best = None
    for root in [path] if isinstance(path, str) else path:
        try:
            for ref in format_.scan(root):
                if ref.complete and ref.step >= min_step and (best is None or ref.step > best.step):
                    best = ref
        except CouldNotLookError as error:
            log.warning("cannot look for checkpoints now, will look again: %s", error)
    return None if best is None else to_plain(best)
