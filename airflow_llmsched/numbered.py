"""A state that many processes change: numbered, create-only records, which is compare-and-swap on every kind of store.

Whoever makes a change reads the state, decides, and creates the next number; if somebody else was first, it reads and
decides again. Decisions look for what they want first, so that one whose answer was lost is made once.

Every so often the state is written down whole, create-only too, and the records before that are deleted. That frees
their numbers in the store but not in the state: whoever creates a record looks afterwards whether a snapshot already
speaks for its number, and takes the record back if so. Then the snapshot may hold it, which the next reading tells.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError, ObjectExistsError, ObjectMissingError, StoreError, TransientError
from airflow_llmsched.ports import Clock, ObjectStore

S = TypeVar("S")
C = TypeVar("C")

_APPEND = EffectPoint("numbered.append")
_TAKE_BACK = EffectPoint("numbered.take_back")
_SNAPSHOT = EffectPoint("numbered.snapshot")
_TIDY = EffectPoint("numbered.tidy")

SNAPSHOT_EVERY = 64
"""Records from one snapshot to the next."""

NUM_RACES = 200
"""How often one change may lose to others: each loss is another's success."""

NUM_STORE_TRIES = 4
FIRST_PAUSE_S = 0.2
NUM_LOOKS = 10

_NAME = re.compile(r"(\d{8})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[S, C]):
    """How a state is made of changes, and how both are written.

    ``noun`` is what messages and snapshots call the state. ``apply`` returns the state after a change, and raises
    ``DataError`` where the change cannot have been made from it; ``forget`` returns it without what may be forgotten at
    a time (Unix seconds). Adding a kind of change or an optional field keeps old records readable; anything else needs
    a new ``version``.
    """

    noun: str
    version: int
    empty: S
    state_type: Any
    change_type: Any
    apply: Callable[[S, C], S]
    forget: Callable[[S, float], S]

    def encode_change(self, change: C, *, number: int) -> bytes:
        """Return record ``number``."""
        return self._dump("change", codec.to_plain(change, self.change_type), number)

    def decode_change(self, data: bytes, *, number: int, where: str) -> C:
        """Return the change of record ``number``. Raises ``DataError`` naming ``where``."""
        change: C = self._load(self.change_type, data, number, "change", where)
        return change

    def encode_state(self, state: S, *, number: int) -> bytes:
        """Return the snapshot of the state after record ``number``."""
        return self._dump(self.noun, codec.to_plain(state, self.state_type), number)

    def decode_state(self, data: bytes, *, number: int, where: str) -> S:
        """Return the state of a snapshot. Raises ``DataError`` naming ``where``."""
        state: S = self._load(self.state_type, data, number, self.noun, where)
        return state

    def _dump(self, what: str, plain: Any, number: int) -> bytes:
        return json.dumps({"v": self.version, "number": number, what: plain}, separators=(",", ":")).encode()

    def _load(self, type_: Any, data: bytes, number: int, what: str, where: str) -> Any:
        try:
            plain = codec.parse_json(data)
            if plain["v"] != self.version:
                raise DataError(f"{where} has format version {plain['v']}, this package reads {self.version}")
            if plain["number"] != number:
                raise DataError(f"{where} says that it is number {plain['number']}: restore it from a backup")
            return codec.from_plain(type_, plain[what])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise DataError(f"{where} is damaged: restore it from a backup ({error})") from error


class Numbered(Generic[S, C]):
    """One such state below ``folder`` of a store. Remembers records that it has read, and looks for new ones."""

    def __init__(
        self, store: ObjectStore, folder: str, form: Form[S, C], *, clock: Clock, snapshot_every: int = SNAPSHOT_EVERY
    ) -> None:
        self._store = store
        self._form = form
        self._clock = clock
        self._snapshot_every = snapshot_every
        self._records = f"{folder}/records/"
        self._snapshots = f"{folder}/snapshots/"
        self._known: dict[int, C] = {}
        self._base: tuple[int, S] = (0, form.empty)
        self._newest: tuple[int, int, S] = (0, 0, form.empty)

    def read(self) -> S:
        """Return the state. Raises ``StoreError``, ``DataError``."""
        return self._read()[0]

    def change(self, decide: Callable[[S], C | None]) -> S:
        """Append what ``decide`` makes of the state, None: nothing; and return the state after it.

        ``decide`` is asked again whenever somebody else was first, and may raise what it likes; so may the store.
        """
        num_failed = 0
        for _ in range(NUM_RACES):
            state, number, covered = self._read()
            change = decide(state)
            if change is None:
                return state
            after = self._form.apply(state, change)  # what contradicts the state is never written
            try:
                won = self._append(change, number + 1)
            except StoreError:  # whether it was written is unknown: the next reading tells
                num_failed += 1
                if num_failed == NUM_STORE_TRIES:
                    raise
                self._clock.sleep(FIRST_PAUSE_S * 2.0**num_failed)
                continue
            if won:
                if number + 1 - covered >= self._snapshot_every:
                    with contextlib.suppress(TransientError, DataError):  # the record is safe, and tidying can wait
                        self.compact()
                return after
        raise TransientError(f"others changed {self._where(self._records)} first, {NUM_RACES} times: try again")

    def compact(self) -> None:
        """Write the state down, and delete what that replaces. Safe to repeat, to race and to die in.

        Raises ``StoreError``, ``DataError``.
        """
        state, number, covered = self._read()
        if number - covered >= self._snapshot_every:
            data = self._form.encode_state(self._form.forget(state, self._clock.now_s()), number=number)
            with contextlib.suppress(ObjectExistsError), _SNAPSHOT:
                self._store.create(self._key(self._snapshots, number), data)
        covered = self._covered()
        if covered:
            self._snapshot(covered)  # before anything is deleted
        stale = [(self._records, number) for number in self._numbers(self._records) if number <= covered]
        stale += [(self._snapshots, number) for number in self._numbers(self._snapshots) if number < covered]
        for prefix, number in stale:
            with _TIDY:
                self._store.delete(self._key(prefix, number))

    def _append(self, change: C, number: int) -> bool:
        """Create a record; False when somebody else has that number."""
        key = self._key(self._records, number)
        try:
            with _APPEND:
                self._store.create(key, self._form.encode_change(change, number=number))
        except ObjectExistsError:
            return False
        if number <= self._covered():
            with _TAKE_BACK:
                self._store.delete(key)  # nobody reads it: a snapshot speaks for this number
            return False
        self._known[number] = change
        return True

    def _read(self) -> tuple[S, int, int]:
        """Return the state, the number of its last record, and up to which number a snapshot holds them."""
        missing: object = None
        for _ in range(NUM_LOOKS):
            # Snapshots are listed after the records: what was replaced in between is then seen twice, not missed.
            numbers = self._numbers(self._records)
            covered = self._covered()
            last = max([number for number in numbers if number > covered], default=covered)
            try:
                state, done = self._from(covered, last)
                # A list is no moment: a record may have come behind it, and the next one before it. So each is read.
                for number in range(done + 1, last + 1):
                    state = self._form.apply(state, self._record(number))
            except ObjectMissingError as error:  # or it has been replaced by a snapshot since
                missing = error
                continue
            self._known = {number: change for number, change in self._known.items() if number > covered}
            self._newest = covered, last, state
            return state, last, covered
        raise DataError(f"a record is missing although later ones exist: restore it from a backup ({missing})")

    def _from(self, covered: int, last: int) -> tuple[S, int]:
        """Return a state that is known, and after which record it holds: what was read last, or the snapshot."""
        since, number, state = self._newest
        if since == covered and number <= last:
            return state, number
        return (self._snapshot(covered) if covered else self._form.empty), covered

    def _record(self, number: int) -> C:
        if number not in self._known:
            key = self._key(self._records, number)
            self._known[number] = self._form.decode_change(self._store.get(key), number=number, where=self._where(key))
        return self._known[number]

    def _snapshot(self, number: int) -> S:
        if self._base[0] != number:
            key = self._key(self._snapshots, number)
            self._base = (
                number,
                self._form.decode_state(self._store.get(key), number=number, where=self._where(key)),
            )
        return self._base[1]

    def _covered(self) -> int:
        return max(self._numbers(self._snapshots), default=0)

    def _numbers(self, prefix: str) -> list[int]:
        names = [(info.key, _NAME.fullmatch(info.key.removeprefix(prefix))) for info in self._store.list(prefix)]
        for key, match in names:
            if match is None:
                raise DataError(f"{self._where(key)} is no record of a {self._form.noun}: move it away")
        return [int(match[1]) for _, match in names if match is not None]

    @staticmethod
    def _key(prefix: str, number: int) -> str:
        return f"{prefix}{number:08d}.json"

    def _where(self, key: str) -> str:
        return f"{self._store.uri}/{key}"
