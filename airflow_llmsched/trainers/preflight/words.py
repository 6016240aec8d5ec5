"""How ranks word what they found: a short line of JSON for each check, as long lines of a log are cut."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

MARK = "LLMSCHED-PREFLIGHT "
"""What a line of results begins with."""

OPTIONS_VARIABLE = "LLMSCHED_PREFLIGHT"
"""Environment variable with the options, as :meth:`Options.to_json` writes them."""

MAX_NAME_CHARS = 80
MAX_DETAIL_CHARS = 160


class Options(NamedTuple):
    """What to check. Zero and empty: not known, and not held against a node."""

    vendor: str = ""
    num_nics: int = 0
    folders: tuple[str, ...] = ()
    num_storage_bytes: int = 64 * 1024 * 1024
    num_link_bytes: int = 16 * 1024 * 1024
    link_limit_s: float = 60.0
    nccl_tests: str = ""

    def to_json(self) -> str:
        """Return the form for the environment."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Rebuild from :meth:`to_json`. Raises ``ValueError``, ``TypeError``."""
        told = json.loads(text)
        return cls(**{**told, "folders": tuple(told.get("folders", ()))})


def ok(name: str, detail: str = "", *, value: float | None = None, unit: str = "") -> dict[str, Any]:
    """Return a check that went well."""
    return _check(name, "ok", detail, value=value, unit=unit)


def bad(name: str, detail: str, *, value: float | None = None, unit: str = "") -> dict[str, Any]:
    """Return a check that speaks against the node."""
    return _check(name, "bad", detail, value=value, unit=unit)


def skipped(name: str, detail: str) -> dict[str, Any]:
    """Return a check that could not be made, and why."""
    return _check(name, "skipped", detail)


def line(check: dict[str, Any]) -> str:
    """Return the line that reports a check."""
    return MARK + json.dumps(check, separators=(",", ":"), ensure_ascii=False)


def _check(name: str, outcome: str, detail: str, *, value: float | None = None, unit: str = "") -> dict[str, Any]:
    shown = " ".join(detail.replace('"', "'").replace("\\", "/").split())  # what JSON would make longer
    return {
        "name": name[-MAX_NAME_CHARS:],
        "outcome": outcome,
        "detail": shown[:MAX_DETAIL_CHARS],
        "value": None if value is None else float(f"{value:.6g}"),
        "unit": unit,
    }
