"""Notes of launches about to happen, for gangs that keep no journal: what a later clean-up must see to it never starts.

A worker may stand still between its note and its submit, for as long as it takes everyone else to end the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectExistsError, StoreError
from airflow_llmsched.ports import ObjectStore

_NOTE = EffectPoint("intents.note")


_NAME = re.compile(r"(.+)-g(\d+)-a(\d+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    key: AttemptKey
    at_s: float


class LaunchIntents:
    """The notes below ``prefix``, one object for each attempt, written once and before the engine is asked."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def note(self, key: AttemptKey, *, at_s: float) -> float:
        """Note that ``key`` is about to be launched; return when that was first noted (Unix seconds).

        Raises ``StoreError``: what could not be noted must not be launched.
        """
        name = f"{self._prefix}{key.name}.json"
        try:
            with _NOTE:
                self._store.create(name, codec.to_json(_Note(key=key, at_s=at_s)))
        except ObjectExistsError:
            return self._read(name).at_s
        return at_s

    def noted(self) -> tuple[AttemptKey, ...]:
        """Return every attempt noted. Raises ``StoreError``.

        Names alone tell, so that a damaged note keeps nobody from giving up what it and the others stand for.
        """
        return tuple(self._named(info.key) for info in self._store.list(self._prefix))

    def _named(self, name: str) -> AttemptKey:
        match = _NAME.fullmatch(name.removeprefix(self._prefix))
        if match is None:
            raise StoreError(f"{self._store.uri}/{name} is no note of a launch: remove it")
        return AttemptKey(run=RunKey(match[1]), generation=int(match[2]), attempt=int(match[3]))

    def _read(self, name: str) -> _Note:
        try:
            return codec.from_json(_Note, self._store.get(name))
        except ValidationError as error:
            raise StoreError(
                f"{self._store.uri}/{name} is damaged: since when it stands is unknown; remove it"
            ) from error


def preflight_intents(store: ObjectStore, run: RunKey) -> LaunchIntents:
    """Return the notes of the checks of nodes for ``run``, which is the key of the run itself."""
    return LaunchIntents(store, f"runs/{run}/preflight-launches/")


def side_intents(store: ObjectStore, run: RunKey) -> tuple[AttemptKey, ...]:
    """Return every launch noted for ``run`` beside its training. Raises ``StoreError``."""
    return (*evaluation_intents(store, run).noted(), *preflight_intents(store, run).noted())


def evaluation_intents(store: ObjectStore, run: RunKey) -> LaunchIntents:
    """Return the notes of the evaluations of ``run``, which is the key of the run itself."""
    return LaunchIntents(store, f"runs/{run}/evaluation-launches/")
