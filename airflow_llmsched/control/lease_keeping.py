"""Keeps the leases of many runs at once: moves their expiries on, and sees what clouds say of their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.control.lease_book import LeaseBook, Rental
from airflow_llmsched.control.open_clouds import OpenCloud, OpenClouds, by_cloud
from airflow_llmsched.domain.identity import LeaseKey, RunKey
from airflow_llmsched.domain.lease import Lease, LeaseState
from airflow_llmsched.errors import LeaseGoneError, LlmschedError, SpecError, TransientError
from airflow_llmsched.ports import Clock

RENEW_BELOW_RATIO = 0.5
"""A lease is renewed once less than this share of a hold is left: seldom, and with time for many a failed call."""

FIRST_PAUSE_S = 30.0
MAX_PAUSE_S = 300.0
"""A place that did not answer is asked again after this long, at first and at last: until it times out, it holds up
what all others have to say, and an interruption is announced two minutes before. It is at most an eighth of a hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What came of keeping one run's leases.

    ``leases`` are those that their clouds list; ``gone`` the keys of open rentals of which nothing is left.
    ``troubles`` says what could not be looked at, renewed or read: those leases live on until they expire.
    """

    leases: tuple[Lease, ...] = ()
    gone: tuple[LeaseKey, ...] = ()
    troubles: tuple[str, ...] = ()

    @property
    def num_open(self) -> int:
        """Rentals that were looked at."""
        return len(self.leases) + len(self.gone)

    @property
    def broken(self) -> tuple[Lease, ...]:
        """Leases with nodes that are gone."""
        return tuple(lease for lease in self.leases if lease.state is LeaseState.BROKEN)

    @property
    def interrupted_at_s(self) -> float | None:
        """When the first node will be taken, as announced (Unix seconds)."""
        times_s = [lease.interrupted_at_s for lease in self.leases if lease.interrupted_at_s is not None]
        return min(times_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silence:
    """A place that did not answer, and is not asked before ``again_at_s`` (Unix seconds)."""

    again_at_s: float
    pause_s: float


_Place = tuple[str, str, str, str]
"""Cloud, its options, region and zone."""


class LeaseKeeper:
    """Keeps leases. For one thread; clouds stay open between calls, and silent places are remembered."""

    def __init__(self, *, open_cloud: OpenCloud, clock: Clock) -> None:
        self._clouds = OpenClouds(open_cloud)
        self._clock = clock
        self._silent: dict[_Place, _Silence] = {}

    def keep(self, books: Sequence[LeaseBook]) -> Mapping[RunKey, Kept]:
        """Look at all open leases, by one call of each cloud, and renew for another hold those that need it.

        A place that did not answer is asked apart, after the others, and ever less often. Raises nothing: a cloud, a
        book, or a record of one, that cannot be asked keeps no other from being so.
        """
        leases: dict[RunKey, list[Lease]] = {book.run: [] for book in books}
        gone: dict[RunKey, list[LeaseKey]] = {book.run: [] for book in books}
        troubles: dict[RunKey, list[str]] = {book.run: [] for book in books}
        for name, rentals in self._groups(self._open(books, troubles), troubles):
            for rental, lease in self._look(name, rentals, troubles):
                key, cloud = rental.intent.key, self._clouds.named(*name)
                try:
                    if lease is None and self._clock.now_s() < rental.intent.at_s + cloud.consistency_s:
                        continue  # too new to be listed
                    if lease is None or lease.state is LeaseState.ENDED:
                        gone[key.run].append(key)
                    elif lease.expires_at_s - self._clock.now_s() > RENEW_BELOW_RATIO * rental.intent.hold_s:
                        leases[key.run].append(lease)
                    else:
                        leases[key.run].append(cloud.renew(lease, until_s=self._clock.now_s() + rental.intent.hold_s))
                except LeaseGoneError:
                    gone[key.run].append(key)
                except Exception as error:  # noqa: BLE001  (whatever an SDK raises for one lease: others are renewed)
                    troubles[key.run].append(_words(error))
        return {
            run: Kept(leases=tuple(leases[run]), gone=tuple(gone[run]), troubles=tuple(troubles[run])) for run in leases
        }

    def _groups(
        self, rentals: Sequence[Rental], troubles: Mapping[RunKey, list[str]]
    ) -> list[tuple[tuple[str, str], list[Rental]]]:
        """Return which rentals to ask each cloud for together: those of silent places last, each place by itself."""
        silent: dict[_Place, list[Rental]] = {}
        together: list[Rental] = []
        for each in rentals:
            place = _place_of(each)
            if place in self._silent:
                silent.setdefault(place, []).append(each)
            else:
                together.append(each)
        groups = list(by_cloud(together).items())
        for place, mine in silent.items():
            wait_s = self._silent[place].again_at_s - self._clock.now_s()
            if wait_s <= 0:
                groups.append((place[:2], mine))
                continue
            for run in {each.intent.key.run for each in mine}:
                where = place[3] or place[2]
                troubles[run].append(f"{mine[0].intent.cloud} did not answer in {where}: asked again in {wait_s:.0f} s")
        return groups

    def _look(
        self, name: tuple[str, str], rentals: Sequence[Rental], troubles: Mapping[RunKey, list[str]]
    ) -> list[tuple[Rental, Lease | None]]:
        """Ask one cloud for all at once; where it does not answer, by region and zone, as only one of them may be down.

        Where the answer cannot be understood, for each alone: of one machine a cloud may say something that its adapter
        has no word for.
        """
        try:
            seen = self._clouds.named(*name).leases([each.intent.lease_id for each in rentals])
        except Exception as error:  # noqa: BLE001  (as above)
            parts = _apart(rentals, error)
            if len(parts) > 1:
                return [pair for part in parts for pair in self._look(name, part, troubles)]
            for run in {each.intent.key.run for each in rentals}:
                troubles[run].append(_words(error))
            if isinstance(error, TransientError):
                self._note_silent(rentals)
            return []
        for each in rentals:
            self._silent.pop(_place_of(each), None)
        return [(each, seen.get(each.intent.lease_id)) for each in rentals]

    def _note_silent(self, rentals: Sequence[Rental]) -> None:
        """Ask the one place that all these are in again later; twice as much later as the last time."""
        place = _place_of(rentals[0])
        before = self._silent.get(place)
        limit_s = min(MAX_PAUSE_S, min(each.intent.hold_s for each in rentals) / 8)
        pause_s = min(limit_s, FIRST_PAUSE_S if before is None else 2 * before.pause_s)
        self._silent[place] = _Silence(again_at_s=self._clock.now_s() + pause_s, pause_s=pause_s)

    @staticmethod
    def _open(books: Sequence[LeaseBook], troubles: Mapping[RunKey, list[str]]) -> list[Rental]:
        found: list[Rental] = []
        for book in books:
            try:
                pages = book.read_open()
            except TransientError as error:
                troubles[book.run].append(str(error))
            else:
                found += pages.rentals
                troubles[book.run] += pages.damage
        return found


def _place_of(rental: Rental) -> _Place:
    pool = rental.intent.offer.pool
    return rental.intent.cloud, rental.intent.cloud_options, pool.region, pool.zone


def _apart(rentals: Sequence[Rental], error: Exception) -> list[list[Rental]]:
    """Return which rentals to ask for together after an error of asking for all."""
    if isinstance(error, SpecError):  # such as options that open no cloud
        return [list(rentals)]
    if not isinstance(error, TransientError):
        return [[each] for each in rentals]
    by_region: dict[str, list[Rental]] = {}
    by_zone: dict[tuple[str, str], list[Rental]] = {}
    for each in rentals:
        pool = each.intent.offer.pool
        by_region.setdefault(pool.region, []).append(each)
        by_zone.setdefault((pool.region, pool.zone), []).append(each)
    return list(by_region.values()) if len(by_region) > 1 else list(by_zone.values())


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, LlmschedError) else f"{type(error).__name__}: {error}"
