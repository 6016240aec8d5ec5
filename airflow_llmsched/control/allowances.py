"""What people allowed a run to spend after it was opened, above all when it asked. Create-only records, newest last."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectExistsError, SpecError, StoreError
from airflow_llmsched.ports import ObjectStore

_ALLOW = EffectPoint("budget.allow")

FORMAT_VERSION = 1
_NAME = re.compile(r"(\d{6})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The run may spend ``max_usd`` in all, instead of what its spec says. ``by`` is who said so, at ``at_s``."""

    max_usd: float
    at_s: float
    by: str = ""
    v: int = FORMAT_VERSION


def answer_command(run: RunKey) -> str:
    """Return the command that answers a run that asks, in words of a shell."""
    return f"llmsched budget {run} --max-usd N"


class Allowances:
    """Those of one run."""

    def __init__(self, store: ObjectStore, run: RunKey) -> None:
        self._store = store
        self._prefix = f"runs/{run}/allowances/"

    def newest(self) -> Allowance | None:
        """Return what counts, None where nobody allowed anything. Raises ``StoreError``, also for a damaged record."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def newest_usd(self) -> float | None:
        """Return what may be spent in all, None where nobody said so. Raises ``StoreError``."""
        newest = self.newest()
        return None if newest is None else newest.max_usd

    def allow(self, max_usd: float, *, at_s: float, by: str = "") -> Allowance:
        """Have the run spend so much in all from now on. Raises ``SpecError`` for no sum, ``StoreError``."""
        if not 0 < max_usd < float("inf"):
            raise SpecError(path="max_usd", value=max_usd, hint="must be dollars in all, above 0")
        allowance = Allowance(max_usd=max_usd, at_s=at_s, by=by)
        while True:
            number = (self._numbers() or [0])[-1] + 1
            try:
                with _ALLOW:
                    self._store.create(f"{self._prefix}{number:06d}.json", codec.to_json(allowance))
            except ObjectExistsError:
                continue  # somebody else spoke at the same time: the later word counts
            return allowance

    def _numbers(self) -> list[int]:
        names = (info.key.removeprefix(self._prefix) for info in self._store.list(self._prefix))
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def _read(self, number: int) -> Allowance:
        key = f"{self._prefix}{number:06d}.json"
        try:
            return codec.from_json(Allowance, self._store.get(key))
        except ValidationError as error:
            raise StoreError(f"{self._store.uri}/{key} is damaged: remove it, and allow the sum again") from error
