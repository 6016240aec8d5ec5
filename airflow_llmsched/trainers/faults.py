"""Faults that the shipped trainer can be told to have, so that tests can check where the ledger books them.

``LLMSCHED_INJECT`` holds one JSON object or a list of them, each one of:

- ``{"hang_s": 7, "hang_at_step": 5, "hang_rank": 1}``: the rank stands still before it computes that step.
- ``{"slow_save_s": 5}``: saves take so much longer; with ``"at_step"`` only the save of that step.
- ``{"rendezvous_wait_s": 6, "rank": 1}``: the rank comes so much later to the rendezvous.
- ``{"exit_code": 3, "rank": 1, "at_step": 5}``: the rank exits at that step with that code, without a word to others.
- ``{"exit_early_rank": 1, "at_step": 5}``: the same with code 0.

``rank`` is 0 unless given. Each applies to attempt 1 alone, or to those listed in ``"attempts"``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow_llmsched.errors import SpecError

INJECT_VARIABLE = "LLMSCHED_INJECT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One entry of ``LLMSCHED_INJECT``; see the module for what its fields mean."""

    rank: int = 0
    at_step: int | None = None
    attempts: tuple[int, ...] = (1,)
    hang_s: float = 0.0
    hang_at_step: int | None = None
    hang_rank: int | None = None
    slow_save_s: float = 0.0
    rendezvous_wait_s: float = 0.0
    exit_code: int | None = None
    exit_early_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What one rank of one attempt has to suffer."""

    rank: int
    injections: tuple[Injection, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, rank: int, attempt: int) -> Faults:
        """Read the injections that concern this attempt. Raises ``SpecError`` for a malformed variable."""
        text = environment.get(INJECT_VARIABLE)
        if not text:
            return cls(rank=rank)
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise SpecError(path=INJECT_VARIABLE, value=text, hint=f"must be JSON: {error}") from None
        entries = plain if isinstance(plain, list) else [plain]
        injections = tuple(_injection(entry) for entry in entries)
        return cls(rank=rank, injections=tuple(each for each in injections if attempt in each.attempts))

    def before_rendezvous(self) -> None:
        """Wait, if this rank is to come late."""
        self._stand_still(sum(each.rendezvous_wait_s for each in self.injections if each.rank == self.rank))

    def before_step(self, step: int) -> None:
        """Hang or exit, if this rank is to at this step."""
        for each in self.injections:
            hang_rank = each.rank if each.hang_rank is None else each.hang_rank
            if each.hang_s and hang_rank == self.rank and step == each.hang_at_step:
                self._stand_still(each.hang_s)
            if each.exit_code is not None and each.rank == self.rank and step == each.at_step:
                _vanish(each.exit_code)
            if each.exit_early_rank == self.rank and step == each.at_step:
                _vanish(0)

    def before_seal(self, step: int) -> None:
        """Drag out the save of ``step``."""
        slow = [each.slow_save_s for each in self.injections if each.at_step in (None, step)]
        self._stand_still(sum(slow))

    @staticmethod
    def _stand_still(duration_s: float) -> None:
        if duration_s > 0:
            time.sleep(duration_s)


def _injection(plain: Any) -> Injection:
    known = {field.name for field in fields(Injection)}
    if not isinstance(plain, dict) or not set(plain) <= known:
        hint = f"must be an object with keys among {', '.join(sorted(known))}"
        raise SpecError(path=INJECT_VARIABLE, value=plain, hint=hint)
    values = dict(plain)
    if "attempts" in values:
        values["attempts"] = tuple(values["attempts"])
    return Injection(**values)


def _vanish(exit_code: int) -> None:
    sys.stderr.write(f"llmsched trainer: exits with {exit_code} because {INJECT_VARIABLE} says so\n")
    sys.stderr.flush()
    os._exit(exit_code)  # no goodbye to the process group: that is the fault
