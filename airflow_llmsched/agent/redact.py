"""Keeps secrets of a rank's environment out of what leaves its node: last lines end up in events and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

HIDDEN = "***"
MIN_LENGTH = 5
"""Shorter values are left: hiding ``1`` or ``true`` wherever it stands would spoil every line."""

_SENSITIVE = (
    *("token", "secret", "password", "passwd", "passphrase", "credential", "bearer", "authorization"),
    *("api_key", "apikey", "access_key", "private_key", "auth_header", "connection_string", "dsn", "webhook_url"),
)
"""Parts of names whose values are secrets: those that Airflow hides (sdk/_shared/secrets_masker), and credentials."""


def is_sensitive(name: str) -> bool:
    """Whether a variable of this name holds a secret, as far as names tell."""
    lower = name.lower().replace("tokenizer", "").replace("tokens", "")  # of the other kind
    return any(part in lower for part in _SENSITIVE)


def secrets_of(*environments: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values to hide, longest first, so that none is left in part because another is within it."""
    found = {
        value
        for environment in environments
        for name, value in environment.items()
        if is_sensitive(name) and len(value) >= MIN_LENGTH
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with every secret replaced by ``***``."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
