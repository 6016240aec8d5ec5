"""What every block of a file has in common: no unknown keys, and values that stay as they were read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Block(BaseModel):
    """Strict: no coercion (text is not a number), no unknown keys, no infinities."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)
