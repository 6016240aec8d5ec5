"""Every error of ours, grouped by what its reader does next. A gang that fails is a status, not an error."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any


class LlmschedError(Exception):
    """Base of all errors raised on purpose by this package."""


class SpecError(LlmschedError):
    """Fix the spec: names file, line, path and value, and says what would be right."""

    def __init__(
        self,
        *,
        path: str,
        hint: str,
        value: object = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.path = path
        self.hint = hint
        self.value = value
        self.file = file
        self.line = line
        where = ":".join(str(part) for part in (file, line) if part is not None)
        shown = "" if value is None else f" = {_short(value)}"
        super().__init__(f"{where + ': ' if where else ''}{path}{shown}: {hint}")

    @property
    def errors(self) -> tuple[SpecError, ...]:
        """Every error found; more than one only in :class:`SpecErrors`."""
        return (self,)


class SpecErrors(SpecError):  # noqa: N818 - several of them
    """All errors of one spec at once, in file order. Its own fields are those of the first."""

    def __init__(self, errors: Sequence[SpecError]) -> None:
        first = errors[0]
        super().__init__(path=first.path, hint=first.hint, value=first.value, file=first.file, line=first.line)
        self._errors = tuple(errors)
        listed = "".join(f"\n  - {error}" for error in self._errors)
        self.args = (f"{len(self._errors)} errors in the spec:{listed}",)

    @property
    def errors(self) -> tuple[SpecError, ...]:
        """Every error found."""
        return self._errors


class RelaxError(LlmschedError):
    """Relax the ask: no plan or placement satisfies it. The message says the smallest relaxation known."""


class CapacityError(LlmschedError):
    """Wait for capacity, or look elsewhere: the ask is legal but nothing is free now."""


class TurnError(CapacityError):
    """Wait for the queue's turn: look again at ``again_at_s`` (Unix seconds); None: it has waited for long enough."""

    def __init__(self, message: str, *, again_at_s: float | None) -> None:
        self.again_at_s = again_at_s
        super().__init__(message)


class QuotaError(LlmschedError):
    """Ask the cloud for more quota, or look in another region: waiting alone changes nothing. ``region`` is used up."""

    def __init__(self, message: str, *, region: str) -> None:
        self.region = region
        super().__init__(message)


class LeftoverError(LlmschedError):
    """Remove by hand what ``ids`` name: it costs money, and its cloud was told to remove it, repeatedly, in vain."""

    def __init__(self, message: str, *, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(f"{message}: {', '.join(self.ids)}")


class LeaseGoneError(LlmschedError):
    """Rent anew: the lease has ended, and nothing can extend it."""


class TransientError(LlmschedError):
    """Try again: an outside system answered badly or not in time, and nothing was changed."""


class CouldNotLookError(TransientError):
    """Reconcile first: whether something exists is unknown. Never treat it as absent."""


class PartlySeenError(CouldNotLookError):
    """Go on with what was ``seen``, and conclude nothing of the ``unseen``: parts of a cloud that did not answer.

    ``unseen`` are their names: regions and zones as pools have them, or whatever else the cloud answers for by itself.
    """

    def __init__(self, message: str, *, seen: Sequence[Any], unseen: Sequence[str]) -> None:
        self.seen = tuple(seen)
        self.unseen = tuple(unseen)
        super().__init__(message)


class LaunchError(LlmschedError):
    """The engine refused or could not complete a launch; whatever had started has been stopped."""


class AbandonedError(LlmschedError):
    """Read the run's records again: what was to be begun was given up before, or had expired. Nothing was started."""


class DataError(LlmschedError):
    """Repair the data: a shard, manifest or checkpoint is missing, torn or does not match its checksum."""


class StoreError(TransientError):
    """The object store could not be read or written. Not the same as an absent object."""


class ObjectMissingError(LlmschedError):
    """The object store was read, and there is no such object."""


class ObjectExistsError(LlmschedError):
    """A create-only write lost: the object is already there."""


class InternalError(LlmschedError):
    """Report a bug: a state that should not exist, with the story that led there."""


def _short(value: object, limit: int = 120) -> str:
    # a spec has words, not members: <NumberFormat.FP8: 'fp8'> is nothing that its reader could look for
    text = repr(value.value if isinstance(value, Enum) else value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
