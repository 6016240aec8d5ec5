"""Who holds what of a limited cluster, kept true: what has ended is freed, by whoever comes to see it."""

from __future__ import annotations

from collections.abc import Callable

from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.engines.fleet.allotments import Allotments
from airflow_llmsched.engines.fleet.book import Book, Entry
from airflow_llmsched.engines.fleet.members import Member, Members
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.ports import Clock

FORGOTTEN_S = 3600.0
"""An attempt that holds a part and has not been submitted for so long is given up: whoever was about to has died."""


class Claims:
    """Holds and frees parts of clusters. ``give_up`` uses a key up, and says whether nothing will start under it."""

    def __init__(
        self,
        allotments: Allotments,
        *,
        book: Book,
        members: Members,
        clock: Clock,
        give_up: Callable[[AttemptKey], bool],
    ) -> None:
        self._allotments = allotments
        self._book = book
        self._members = members
        self._clock = clock
        self._give_up = give_up
        self._freed: set[tuple[str, AttemptKey]] = set()

    def hold(self, member: Member, entry: Entry) -> None:
        """Hold what an attempt takes of its cluster, unless it does, or its gang is there already.

        Raises ``CapacityError`` for what a limit forbids, ``SilentClusterError``, ``StoreError``.
        """
        limits = member.cluster.limits
        if not limits.are_set or any(each.key == entry.key for each in self._allotments.held(member.name)):
            return
        live = self._settled(member)
        try:
            self._allotments.hold(entry, limits, live=live)
        except CapacityError:
            if not self._has_begun(member, entry):
                raise
        self._freed.discard((member.name, entry.key))

    def free(self, member: Member, key: AttemptKey) -> None:
        """Free what an attempt holds, if it does: it has ended, or will never begin."""
        if member.cluster.limits.are_set and (member.name, key) not in self._freed:
            self._allotments.free(member.name, [key])
            self._freed.add((member.name, key))

    def taken(self, member: Member) -> list[Entry]:
        """Return the entries of all attempts that have, or may yet take, a part of a limited cluster.

        Raises ``SilentClusterError``, ``StoreError``.
        """
        live = self._settled(member)
        held = self._allotments.held(member.name)
        return list({each.key: each for each in (*live, *held)}.values())

    def _settled(self, member: Member) -> list[Entry]:
        """Free what attempts hold that are over, and return the entries of those that live.

        Which have begun is looked at before which live: one that is submitted in between is not taken for ended.
        """
        held = self._allotments.held(member.name)
        begun = {each.key for each in held if self._has_begun(member, each)}
        live = self._members.live(member)
        over = begun - {each.key for each in live}
        forgotten = [each.key for each in held if each.key not in begun and self._is_forgotten(each)]
        over |= {key for key in forgotten if self._give_up(key)}
        if over:
            self._allotments.free(member.name, over)
        return live

    def _has_begun(self, member: Member, entry: Entry) -> bool:
        """Whether an attempt was submitted to its cluster, or never will be."""
        noted = self._book.find(entry.key)
        if noted is not None and noted.cluster != member.name:
            return True
        if self._book.native_id(entry.key) is not None:
            return True
        found = self._members.ask(member, lambda: member.engine.find(entry.key.run))
        return any(handle.key == entry.key for handle in found)

    def _is_forgotten(self, entry: Entry) -> bool:
        return self._clock.now_s() - entry.at_s >= FORGOTTEN_S
