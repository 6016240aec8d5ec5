"""A run's state as one worker believes it to be, and what it has not yet made durable."""

from __future__ import annotations

from airflow_llmsched.control import events as ev
from airflow_llmsched.control import snapshots
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.machine import advance


class Session:
    """One worker's reading of a journal. ``num_records`` is how many records of it ``state`` was made of."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        rebuilt = snapshots.rebuild(journal)
        self.state = rebuilt.state
        self.num_records = rebuilt.number
        self._snapshot_number = rebuilt.snapshot_number
        self._pending: list[ev.AnyEvent] = []

    def events(self) -> tuple[ev.AnyEvent, ...]:
        """Return everything that led to this state. Reads the whole journal, which may be long."""
        records = self._journal.records()[: self.num_records]
        return (*(event for record in records for event in record), *self._pending)

    def record(self, *events: ev.AnyEvent) -> None:
        """Advance by ``events``; durable after the next :meth:`flush`."""
        for event in events:
            self.state, _ = advance(self.state, event)
            self._pending.append(event)

    def flush(self) -> None:
        """Make all recorded events durable, together. Raises ``JournalRaceError``, ``StoreError``."""
        if not self._pending:
            return
        last = tuple(self._pending)
        self._journal.append(last, number=self.num_records + 1)
        self.num_records += 1
        self._pending = []
        if self.num_records - self._snapshot_number >= snapshots.SNAPSHOT_EVERY:
            snapshots.keep(self._journal, self.state, number=self.num_records, last=last)
            self._snapshot_number = self.num_records
