"""What of a cluster's limits our gangs hold. To claim it and to check it is one change of a state that all share.

An attempt holds its part from before its cluster is asked for anything until it has ended, or nothing will start under
its key any more. So of two that fit one at a time, one is refused, however close together they come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from airflow_llmsched.domain.fleet import ClusterLimits
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.engines.fleet.book import Entry
from airflow_llmsched.engines.fleet.limits import refusal
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.numbered import Form, Numbered
from airflow_llmsched.ports import Clock, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An attempt holds what its entry says."""

    entry: Entry
    kind: Literal["held"] = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """Attempts, by name, hold nothing any more."""

    names: tuple[str, ...]
    kind: Literal["freed"] = "freed"


Change = Annotated[Held | Freed, Field(discriminator="kind")]
AnyChange = Held | Freed


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Entries of the attempts that hold a part of one cluster, by their names."""

    held: Mapping[str, Entry] = field(default_factory=dict)


def apply(holdings: Holdings, change: AnyChange) -> Holdings:
    """Return the holdings after a change."""
    if isinstance(change, Held):
        return replace(holdings, held={**holdings.held, change.entry.key.name: change.entry})
    return replace(holdings, held={name: each for name, each in holdings.held.items() if name not in change.names})


FORM = Form(
    noun="holdings",
    version=1,
    empty=Holdings(),
    state_type=Holdings,
    change_type=Change,
    apply=apply,
    forget=lambda holdings, _now_s: holdings,
)


class Allotments:
    """The holdings of every cluster of a deployment. Raises ``StoreError`` and ``DataError`` as ``numbered`` does."""

    def __init__(self, store: ObjectStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._clusters: dict[str, Numbered[Holdings, AnyChange]] = {}

    def hold(self, entry: Entry, limits: ClusterLimits, *, live: Sequence[Entry]) -> None:
        """Hold what an attempt takes of its cluster, if that is within its limits; do nothing if it holds it already.

        ``live`` are entries of gangs that were seen there: they count though they hold nothing, as those do that were
        started before there was a limit. Raises ``CapacityError``.
        """

        def decide(holdings: Holdings) -> Held | None:
            if entry.key.name in holdings.held:
                return None
            beside = {**{each.key.name: each for each in live}, **holdings.held}
            broken = refusal(entry, limits, tuple(beside.values()))
            if broken is not None:
                raise CapacityError(f"cluster {entry.cluster} has a limit: {broken}; wait, or use another cluster")
            return Held(entry=entry)

        self._of(entry.cluster).change(decide)

    def held(self, cluster: str) -> tuple[Entry, ...]:
        """Return the entries of the attempts that hold a part of a cluster."""
        return tuple(self._of(cluster).read().held.values())

    def free(self, cluster: str, keys: Collection[AttemptKey]) -> None:
        """Free what attempts hold of a cluster, if they do. Idempotent."""

        def decide(holdings: Holdings) -> Freed | None:
            names = tuple(sorted(key.name for key in keys if key.name in holdings.held))
            return Freed(names=names) if names else None

        self._of(cluster).change(decide)

    def _of(self, cluster: str) -> Numbered[Holdings, AnyChange]:
        if cluster not in self._clusters:
            folder = f"fleet/clusters/{cluster}/holdings"
            self._clusters[cluster] = Numbered(self._store, folder, FORM, clock=self._clock)
        return self._clusters[cluster]
