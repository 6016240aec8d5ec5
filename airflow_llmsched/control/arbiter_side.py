"""Says for a gang beside a run's training what it may be launched on: an evaluation, or checks of the run's nodes.

It claims like a run, by the same records: what it holds nobody else plans on, it waits its turn where its run does, at
the run's priority, and it makes room when it is told to. It keeps no journal: who is late is told by the number of the
launch that he claims for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_state import Claim, GroundState, launch_number
from airflow_llmsched.control.arbiter_turn import ends_by_s, turn_of, unknown_words
from airflow_llmsched.control.arbiter_view import as_if_alone, beside, left_over, only, part_of, slots_of
from airflow_llmsched.control.fit_nodes import without
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import CapacityError, RelaxError, TurnError
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideClaim:
    """What stands in each claim of such a gang. ``key`` claims for the gangs of ``run``; times are in seconds.

    ``queue`` is the block of the run's spec, None without one. ``runs_for_s`` is the longest that it is expected to
    hold what it gets (None: nobody knows), ``yield_s`` how long it may take to leave.
    """

    key: RunKey
    run: RunKey
    queue: QueueWish | None
    dag_id: str = ""
    run_id: str = ""
    runs_for_s: float | None = None
    yield_s: float = 60.0


class Fitting(Protocol):
    """Where a gang fits."""

    def place(self, tree: TopologyTree) -> Placement:
        """Return a place on what is free. Raises ``CapacityError``: there is none now; ``RelaxError``: or ever."""

    def asks(self, tree: TopologyTree) -> QueuedGang:
        """Return what it asks of the queue, where nothing runs on ``tree``. Raises as :meth:`place`."""


class SideArbiter:
    """Acts for one such gang. Its methods raise ``StoreError``."""

    def __init__(
        self,
        ground: Ground,
        decider: Decider,
        *,
        claim: SideClaim,
        topology: Callable[[], TopologyTree],
        clock: Clock,
        rules: QueueRules,
        number_of: Callable[[AttemptKey], int] = launch_number,
    ) -> None:
        """``number_of`` returns the number of a launch: a later one has a larger number."""
        self.ground = ground.name
        self.key = claim.key
        self.number_of = number_of
        self._ground = ground
        self._decider = decider
        self._about = claim
        self._topology = topology
        self._clock = clock
        self._rules = rules

    def hold(self, fitting: Fitting, *, key: AttemptKey, own: TopologyTree | None = None) -> Placement:
        """Return where launch ``key`` of the gang goes, which it holds from now on.

        ``own`` are nodes that are the run's alone and come before all others: it waits for nobody there.

        Raises:
            TurnError: it waits its turn.
            CapacityError: nothing is free now, and it waits for no turn.
            RelaxError: nothing will do.
            JournalRaceError: a later launch claims, or has given back.
        """
        unknown = unknown_words(self._about.queue, self._rules)
        if unknown:
            raise TurnError(unknown, again_at_s=None)
        tree = without(self._topology() if own is None else own, self._ground.lacks)
        number = self.number_of(key)
        mine = self._mine()
        if mine is not None and not mine.waits and mine.yields_to is None:
            held = self._on_what_is_held(mine, fitting, tree, number)
            if held is not None:
                return held
        waits_in_line = mine is not None and (mine.waits or mine.yields_to is not None)
        if own is not None or (self._about.queue is None and not waits_in_line):
            return self._take(fitting, tree, number, decides=own is None)
        return self._queue(fitting, tree, number)

    def must_leave(self) -> str:
        """Return why the gang is to make room, empty: it is not."""
        mine = self._mine()
        return "" if mine is None or mine.yields_to is None else f"it is to make room for run {mine.yields_to}"

    def others(self) -> Mapping[RunKey, frozenset[NodeId]]:
        """Return the nodes that other gangs hold now, by who."""
        claims = self._ground.state().claims
        return {key: frozenset(each.held) for key, each in claims.items() if key != self.key and each.held}

    def num_yields(self) -> int:
        """Return how often the gang has made room: launches that are charged to nobody."""
        mine = self._mine()
        return 0 if mine is None else mine.num_yields

    def give_back(self, key: AttemptKey) -> None:
        """Give back what launch ``key`` and those before it hold, with nothing of them alive. Idempotent.

        Nobody who is no later claims after that. Who gets it is decided, if it can be.
        """
        if self._mine() is None:
            return
        number = self.number_of(key)
        self._ground.free(self.key, num_records=number, remember=number + 1)
        try:
            if self._ground.state().waiting:
                self._decider.decide(without(self._topology(), self._ground.lacks))
        except Exception as error:  # noqa: BLE001  (others' claims must not keep this gang's task from its end)
            log.warning("%s has ended; who gets what it held is for those who wait: %s", self.key, error)

    def _mine(self) -> Claim | None:
        return self._ground.state().claims.get(self.key)

    def _on_what_is_held(self, mine: Claim, fitting: Fitting, tree: TopologyTree, number: int) -> Placement | None:
        try:
            placement = fitting.place(only(tree, mine.held))
        except (CapacityError, RelaxError):
            return None

        def make(state: GroundState) -> Claim | None:
            found = state.claims.get(self.key)
            if found is None or found.yields_to is not None or found.held not in (mine.held, slots_of(placement)):
                raise JournalRaceError(f"{self.key}: what it holds has changed while it was placed: look again")
            now_s = self._clock.now_s()
            until_s = ends_by_s(self._about.runs_for_s, now_s=now_s)
            taken = replace(found, num_records=number, held=slots_of(placement), ends_by_s=until_s)
            return replace(taken, given_at_s=None, seen_at_s=now_s)

        self._ground.claim_by(make)
        return placement

    def _take(self, fitting: Fitting, tree: TopologyTree, number: int, *, decides: bool) -> Placement:
        """Be placed on what nobody else holds or is promised, and hold it in the same step."""
        placed: list[Placement] = []
        if decides:
            self._decider.decide(tree)

        def make(state: GroundState) -> Claim | None:
            placed.append(fitting.place(left_over(beside(tree, state, run=self.key), state, run=self.key)))
            now_s = self._clock.now_s()
            asked = fitting.asks(as_if_alone(only(tree, slots_of(placed[-1]))))
            claim = self._claim(self._gang(asked), number, since_s=now_s)
            until_s = ends_by_s(claim.runs_for_s, now_s=now_s)
            held = slots_of(placed[-1])
            claim = replace(claim, part_ratio=part_of(held, tree))
            return replace(claim, held=held, started_s=now_s, ends_by_s=until_s, is_own=not decides)

        try:
            self._ground.claim_by(make)
        except (CapacityError, RelaxError):
            self._drop(number)
            raise
        return placed[-1]

    def _queue(self, fitting: Fitting, tree: TopologyTree, number: int) -> Placement:
        """Ask for what it needs, have it decided, and be placed on what that gave."""
        try:
            asked = self._gang(fitting.asks(as_if_alone(tree)))
        except (CapacityError, RelaxError):
            self._drop(number)
            raise

        def make(state: GroundState) -> Claim | None:
            found = state.claims.get(self.key)
            if found is None or found.yields_to is not None:
                num_yields = 0 if found is None else found.num_yields + 1
                return replace(self._claim(asked, number, since_s=self._clock.now_s()), num_yields=num_yields)
            if not found.waits:
                return None  # its turn has come since it looked
            claim = self._claim(asked, number, since_s=found.since_s)
            return replace(claim, reserved=found.reserved, wait=found.wait, num_yields=found.num_yields)

        claimed = self._ground.claim_by(make).claims[self.key]
        state = self._decider.decide(tree)
        mine = state.claims.get(self.key, claimed)
        if not mine.waits:
            placement = self._on_what_is_held(mine, fitting, tree, number)
            if placement is not None:
                return placement
            self._drop(number)
            raise CapacityError(f"the queue's turn gave it {', '.join(sorted(mine.held))}, which cannot be used now")
        turn = turn_of(mine, state.lease, self._about.queue, now_s=self._clock.now_s())
        if turn.again_at_s is None:
            self._drop(number)
        raise TurnError(turn.reason, again_at_s=turn.again_at_s)

    def _drop(self, number: int) -> None:
        """Give up the place in the queue, or what is held, for now."""
        self._ground.free(self.key, num_records=number, for_good=False)

    def _gang(self, asked: QueuedGang) -> QueuedGang:
        wish = self._about.queue or QueueWish()
        return replace(asked, key=self.key, team=wish.team, priority_class=wish.priority)

    def _claim(self, gang: QueuedGang, number: int, *, since_s: float) -> Claim:
        about = self._about
        return Claim(
            gang=gang,
            num_records=number,
            since_s=since_s,
            dag_id=about.dag_id,
            run_id=about.run_id,
            runs_for_s=about.runs_for_s,
            yield_s=about.yield_s,
            beside=about.run,
            scope=self._ground.scope,
            seen_at_s=self._clock.now_s(),
        )
