"""The claims to one cluster in the state root, and whoever decides about them. Every change is one record.

Whoever decides holds the queue's lease: that spares the others the work. It is not what keeps two from deciding at
once: a decision is a record that comes right after those it was made from, or it is made anew.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from airflow_llmsched.control.arbiter_state import (
    FORM,
    LEASE_S,
    REMEMBER_S,
    AnyChange,
    Claim,
    Claimed,
    Closed,
    Decided,
    Freed,
    GroundState,
    Led,
    QueueLease,
    passed_over,
)
from airflow_llmsched.control.arbiter_turn import with_moves
from airflow_llmsched.control.arbiter_view import SavedAt, queue_state, slots_of_slices
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueuedGang, QueueState
from airflow_llmsched.domain.queue_decision import QueueDecision, Start
from airflow_llmsched.domain.queue_rules import QueueRules
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.numbered import Numbered
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.queue.choices import choose
from airflow_llmsched.planner.queue.decide import Place, decide, placing_by
from airflow_llmsched.ports import Clock, ObjectStore

_CLAIM = EffectPoint("arbiter.claim")
_FREE = EffectPoint("arbiter.free")
_CLOSE = EffectPoint("arbiter.close")
_LEAD = EffectPoint("arbiter.lead")
_DECIDE = EffectPoint("arbiter.decide")

GROUNDS = "arbiter/"
"""Folder of the state root with one folder for each cluster."""

MANY_PAST = 64
"""Ended runs after which it is decided though nobody waits: a decision counts what they have used, and forgets them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Ground:
    """One cluster's claims. ``name`` is what the engine is called; a fleet is one ground: plans may be on any of it.

    ``scope`` stands for what of the cluster an engine has that was opened with it; ``""``: all. ``lacks`` are nodes of
    that engine which are shared out elsewhere: nobody may plan on them by these claims.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        clock: Clock,
        scope: str = "",
        lacks: frozenset[NodeId] = frozenset(),
    ) -> None:
        if not _NAME.fullmatch(name):
            raise SpecError(path="engine", value=name, hint="must be letters, digits, - and _, at most 63")
        self.name = name
        self.scope = scope
        self.lacks = lacks
        self._clock = clock
        self._numbered = Numbered(store, f"{GROUNDS}{name}", FORM, clock=clock)

    def state(self) -> GroundState:
        """Return who holds and who awaits what. Raises ``StoreError``, ``DataError``."""
        return self._numbered.read()

    def claim(self, claim: Claim) -> GroundState:
        """Have a run wait, or hold what it knows to be its own. Raises as :meth:`claim_by`."""
        return self.claim_by(lambda _state: claim)

    def claim_by(self, make: Callable[[GroundState], Claim | None]) -> GroundState:
        """Have a run claim what ``make`` makes of the state, None: nothing. It is asked again if others were first.

        Raises:
            JournalRaceError: somebody who had read more of the run's journal has claimed, or given back, since.
            StoreError: whether it was written is unknown.
        """

        def change(state: GroundState) -> AnyChange | None:
            claim = make(state)
            if claim is None or state.claims.get(claim.gang.key) == claim:
                return None
            self._refuse_late(state, claim)
            return Claimed(claim=claim, at_s=self._clock.now_s())

        with _CLAIM:
            return self._numbered.change(change)

    def take_over(self, make: Callable[[GroundState], Claim | None], *, instead_of: RunKey) -> GroundState:
        """Have a run hold what its checks, which claim as ``instead_of``, hold: in one record, so that nobody is first.

        ``make`` returns the run's claim, None: nothing is taken over. Raises ``StoreError``, ``JournalRaceError``.
        """

        def change(state: GroundState) -> AnyChange | None:
            claim = make(state)
            if claim is None:
                return None
            self._refuse_late(state, claim)
            now_s = self._clock.now_s()
            return Claimed(claim=claim, instead_of=instead_of, remember_until_s=now_s + REMEMBER_S, at_s=now_s)

        with _CLAIM:
            return self._numbered.change(change)

    def free(self, run: RunKey, *, num_records: int, for_good: bool = True, remember: int | None = None) -> None:
        """Give back what a run has claimed; nothing, if somebody has claimed since who knows more. Idempotent.

        ``num_records`` is how much of the run's journal the caller has read. ``for_good``: nobody who has read less
        (than ``remember``, if given) claims anything for it afterwards, though it may have claimed nothing so far.
        Raises ``StoreError``.
        """
        known = num_records if remember is None else remember

        def change(state: GroundState) -> AnyChange | None:
            claim, gone = state.claims.get(run), state.given_back.get(run)
            if claim is not None and claim.num_records > num_records:
                return None
            if claim is None and (not for_good or (gone is not None and gone.num_records >= known)):
                return None
            return self._freed(run, num_records=known)

        with _FREE:
            self._numbered.change(change)

    def disown(self, claim: Claim) -> None:
        """Give back a claim of a run that has no journal (any more), if it stands as it was. Raises ``StoreError``.

        Nobody can have read as much of that as its writer had, so that :meth:`free` leaves it alone for ever.
        """

        def change(state: GroundState) -> AnyChange | None:
            if state.claims.get(claim.gang.key) != claim:
                return None
            return self._freed(claim.gang.key, num_records=0)

        with _FREE:
            self._numbered.change(change)

    def close(self) -> bool:
        """Have nobody claim anything any more, if nobody does now; return whether that is so. Raises ``StoreError``."""

        def change(state: GroundState) -> AnyChange | None:
            return None if state.claims or state.is_closed else Closed()

        with _CLOSE:
            return self._numbered.change(change).is_closed

    def _freed(self, run: RunKey, *, num_records: int) -> Freed:
        now_s = self._clock.now_s()
        return Freed(run=run, num_records=num_records, remember_until_s=now_s + REMEMBER_S, at_s=now_s)

    def _refuse_late(self, state: GroundState, claim: Claim) -> None:
        if state.is_closed:
            raise CouldNotLookError(f"nodes of {self.name} are shared out elsewhere by now: try again")
        if not state.may_claim(claim):
            raise JournalRaceError(
                f"run {claim.gang.key} has moved on: another worker claims slots for it, or its records in the "
                f"state root were deleted since; {GROUNDS}{self.name} remembers what it gave back for a week"
            )

    def change(self, decide: Callable[[GroundState], AnyChange | None]) -> GroundState:
        """Append what ``decide`` makes of the state. Raises ``StoreError``."""
        return self._numbered.change(decide)


class Decider:
    """Decides about one ground, for as long as it can get the lease. ``holder`` must be nobody else's."""

    def __init__(
        self,
        ground: Ground,
        *,
        rules: QueueRules,
        clock: Clock,
        saved_at: SavedAt = lambda _run: None,
        place: Place | None = None,
        holder: str = "",
    ) -> None:
        self._ground = ground
        self._rules = rules
        self._clock = clock
        self._saved_at = saved_at
        # Without time to look for better places: the lease is for all that wait.
        self._place = place or placing_by(BestFitSolver(), time_limit_s=0.0)
        self._holder = holder or uuid.uuid4().hex

    def decide(self, tree: TopologyTree) -> GroundState:
        """Decide about all that wait, on ``tree`` as it is now, unless somebody else is about to. Returns the state.

        Nobody waits for who is absent: he gets what is left, once he is there again.

        Raises ``StoreError``, ``DataError``.
        """
        with _LEAD:
            state = self._ground.change(self._lead)
        if state.lease is None or state.lease.holder != self._holder:
            return state
        with _DECIDE:
            return self._ground.change(lambda found: self._decide(found, tree))

    def _lead(self, state: GroundState) -> Led | None:
        now_s = self._clock.now_s()
        is_needed = bool(state.waiting or state.absent(now_s)) or len(state.past) >= MANY_PAST
        if not is_needed or state.is_led(now_s):
            return None
        return Led(lease=QueueLease(holder=self._holder, until_s=now_s + LEASE_S))

    def _decide(self, state: GroundState, tree: TopologyTree) -> Decided | None:
        if state.lease is None or state.lease.holder != self._holder:
            return None  # taken over, as its time had run out
        now_s = self._clock.now_s()
        scope, absent = self._ground.scope, state.absent(now_s)
        state = passed_over(state, absent)
        state = replace(state, claims={run: claim for run, claim in state.claims.items() if run not in absent})
        queue = queue_state(state, tree, self._rules, now_s=now_s, scope=scope)
        decision = self._decided(queue)
        if decision.preemptions:  # who is to go hangs on what would be lost
            saved_at = self._in_time(now_s)
            queue = queue_state(state, tree, self._rules, now_s=now_s, scope=scope, saved_at=saved_at)
            decision = self._decided(queue)
        return Decided(
            holder=self._holder,
            at_s=now_s,
            starts=_held(decision.starts, tree, state),
            preemptions=decision.preemptions,
            reservations=decision.reservations,
            waits=with_moves(decision),
            usage=queue.usage,
            scope=scope,
            absent=absent,
        )

    def _decided(self, queue: QueueState) -> QueueDecision:
        objective = self._rules.objective
        if objective is None:
            return decide(queue, self._place)
        return choose(queue, self._place, weights=objective).decision

    def _in_time(self, began_s: float) -> SavedAt:
        """Ask what runs have saved for a part of the lease only: whoever asks for longer never gets to decide."""

        def saved_at(run: RunKey) -> float | None:
            return self._saved_at(run) if self._clock.now_s() < began_s + LEASE_S / 3 else None

        return saved_at


def _held(starts: Iterable[Start], tree: TopologyTree, state: GroundState) -> tuple[Start, ...]:
    """Return starts with what each holds by slot: one on slices those that nobody does, here or before."""
    found: list[Start] = []
    for start in starts:
        held = start.held if start.slices is None else slots_of_slices(start.slices, tree, state)
        found.append(replace(start, held=held, placement=None, slices=None))
        gang = QueuedGang(key=start.gang, team="", priority_class="")
        holder = Claim(gang=gang, num_records=0, since_s=0.0, held=held)
        state = replace(state, claims={**state.claims, start.gang: holder})
    return tuple(found)
