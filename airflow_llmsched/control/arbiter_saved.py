"""By when what a run has done was last saved: what it would lose by leaving now is what it did since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_llmsched.control.journal import Journal, JournalError
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.snapshots import rebuild
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.progress import NodeReport
from airflow_llmsched.errors import InternalError, TransientError
from airflow_llmsched.ports import ObjectStore, RecentChannel, RunChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWork:
    """Asks journals and channels. A trainer's word that it has saved is enough here: it only orders who goes first."""

    store: ObjectStore
    open_channel: Callable[[str], RunChannel]

    def at_s(self, run: RunKey) -> float | None:
        """Return when a run's gang last said that it had saved, in Unix seconds; None: never, or nobody can tell."""
        try:
            root = rebuild(Journal(self.store, run)).state.channel_root
            reports = _newest(self.open_channel(root)) if root else ()
        except (TransientError, JournalError, InternalError):
            return None
        return max((mark.at_s for report in reports for mark in report.marks), default=None)


def _newest(channel: RunChannel) -> Sequence[NodeReport]:
    """Return reports among which the last mark is: all of them may be more than fits into memory."""
    return channel.recent() if isinstance(channel, RecentChannel) else read_all(channel)
