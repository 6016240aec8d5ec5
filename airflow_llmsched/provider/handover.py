"""What a watch ends with, as JSON: the payload of a trigger's event, and of the blocking path's."""

from __future__ import annotations

import time
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.control.events import Handover


def handed_over(event: Any) -> dict[str, Any]:
    """Return the payload for ``event``, one of ``control.events.Handover``."""
    return {"handover": codec.to_plain(event, Handover), "yielded_at_s": time.time()}
