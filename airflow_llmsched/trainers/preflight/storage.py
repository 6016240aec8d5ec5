"""Checks of the folders that the gang will read and write: a file is written through, read back and removed."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

from airflow_llmsched.trainers.preflight.words import bad, ok

_PART_BYTES = 4 * 1024 * 1024


def check_folder(folder: str, *, node: str, num_bytes: int) -> dict[str, Any]:
    """Write ``num_bytes`` below ``folder``, have them on the medium, and read them back as they were."""
    name = f"storage {folder}"
    path = Path(folder) / f".llmsched-preflight-{node}-{secrets.token_hex(4)}"
    part = secrets.token_bytes(min(num_bytes, _PART_BYTES))
    num_parts = max(1, num_bytes // len(part))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        started_s = time.monotonic()
        with path.open("xb") as file:
            for _ in range(num_parts):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        took_s = max(time.monotonic() - started_s, 1e-9)
        with path.open("rb") as file:
            same = all(file.read(len(part)) == part for _ in range(num_parts))
    except OSError as error:
        return bad(name, f"{error.strerror or error}: {error.filename or folder}")
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    rate = num_parts * len(part) / took_s
    if not same:
        return bad(name, "what was read back is not what was written", value=rate, unit="bytes/s")
    return ok(name, value=rate, unit="bytes/s")
