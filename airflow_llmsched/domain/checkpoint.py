"""What is known about a checkpoint on storage. Complete, torn and unreadable are three different things."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from airflow_llmsched.agent import wire
from airflow_llmsched.domain.identity import AttemptKey


class VerifyDepth(StrEnum):
    """How hard to look: names, names and sizes, or every byte against its recorded digest."""

    LISTING = "listing"
    SIZES = "sizes"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SavedBy:
    """The attempt in whose own folder a checkpoint lies. The later attempt is the larger."""

    generation: int
    attempt: int

    @classmethod
    def of_key(cls, key: AttemptKey) -> SavedBy:
        """Return it for the attempt ``key``."""
        return cls(generation=key.generation, attempt=key.attempt)

    @classmethod
    def of_folder(cls, name: str) -> SavedBy | None:
        """Return whose folder below a checkpoint root ``name`` is, None when it is no attempt's."""
        found = wire.attempt_of_folder(name)
        return None if found is None else cls(generation=found[0], attempt=found[1])

    @property
    def folder(self) -> str:
        """Name of the attempt's folder below the run's checkpoint root."""
        return wire.attempt_folder(generation=self.generation, attempt=self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """One checkpoint directory. ``torn_reason`` is None when it is complete as far as a listing shows.

    ``saved_by`` is None for one that lies in the root itself: nobody can tell which attempt saved it.
    """

    step: int
    path: str
    format: str
    torn_reason: str | None = None
    world_size: int | None = None
    saved_at_s: float | None = None
    saved_by: SavedBy | None = None

    @property
    def complete(self) -> bool:
        """Whether the format's completion rule holds."""
        return self.torn_reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """The checkpoint can be loaded, as far as ``depth`` shows. ``digest`` names its content: its manifest's sha256."""

    depth: VerifyDepth
    num_bytes: int
    digest: str
    kind: Literal["sound"] = "sound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """The checkpoint must not be loaded. ``reason`` names the file and what is wrong with it."""

    reason: str
    kind: Literal["damaged"] = "damaged"


Verdict = Sound | Damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """Whether a checkpoint can be resumed under another layout, and why not."""

    ok: bool
    reason: str
