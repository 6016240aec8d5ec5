"""Who holds and who awaits which slots of one cluster: the state, and what changes it. Pure.

A claim is one run's, or that of a gang beside its training: it waits, or it holds slots. Whoever writes one says how
many records of the run's journal it had read, or which launch of the gang it is for, and nobody who is behind that
changes it afterwards: a worker that stood still, and was taken for dead, neither takes nor gives back anything that its
successor has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from airflow_llmsched.control.fencing import CLOCK_SKEW_S
from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.queue import Amounts, QueuedGang, Reservation, TeamUsage
from airflow_llmsched.domain.queue_decision import Preempt, Start, Waits
from airflow_llmsched.domain.slots import FIRST_SLICE, taken_of
from airflow_llmsched.errors import DataError
from airflow_llmsched.numbered import Form

REMEMBER_S = 7 * 86_400.0
"""For how long after a run gave back what it held nobody who had read less of its journal can claim for it."""

LEASE_S = 30.0
"""How long deciding may take: half a second for thousands of gangs, and a look at what those have saved that may go."""

ABSENT_S = 1200.0
"""Who waits comes back every five minutes at the latest (``control.planning``), and at once when it is its turn. One
that has not for this long is gone, or cannot: its DAG run was deleted, or its DAG is paused."""

LAUNCHES_PER_ROUND = 1_000
ROUNDS_PER_GENERATION = 1_000

Slots = Mapping[NodeId, tuple[int, ...]]
"""Accelerators by node."""


def _none_if_damaged(value: Any, read: ValidatorFunctionWrapHandler) -> NetworkLoad | None:
    try:
        load: NetworkLoad | None = read(value)
    except ValidationError:
        return None
    return load


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one run holds (``held``), or waits for since ``since_s``. Times are Unix seconds.

    ``num_records`` is how much of the run's journal its writer had read; for a gang beside a run's training, whose run
    is ``beside``, the number of its launch (``control.arbiter_side``), and ``num_yields`` how often it made room.
    ``runs_for_s`` is how long it is expected to run from its start, ``yield_s`` how long it may take to save and leave;
    ``wait`` what the last decision said of it. One that holds slots and is to leave names for whom: ``yields_to``; it
    is to be gone by ``yields_by_s``. ``scope`` is what its run's engine has of the cluster (``Ground.scope``). What it
    has rented, ``is_own``, is nobody else's, who could make it leave. One on slices holds their slots, which come to
    ``part_ratio`` of an accelerator. ``saves_every_s``: how far apart its checkpoints are expected to be, None: it is
    not known, or there are none on the way. ``seen_at_s`` is when its run last came to claim; ``given_at_s`` when what
    it holds was given to it, None once the run has taken it up: nothing is launched on it before. ``load`` is what its
    gang puts on links of the network that others may use, too; None: not known, and nobody plans by it. So is what
    cannot be read: what others are planned by must not keep a ground from being read.
    """

    gang: QueuedGang
    num_records: int
    since_s: float
    dag_id: str = ""
    run_id: str = ""
    runs_for_s: float | None = None
    saves_every_s: float | None = None
    yield_s: float = 60.0
    held: Slots = field(default_factory=dict)
    started_s: float = 0.0
    ends_by_s: float | None = None
    yields_to: RunKey | None = None
    yields_by_s: float | None = None
    reserved: Reservation | None = None
    wait: Waits | None = None
    beside: RunKey | None = None
    num_yields: int = 0
    scope: str = ""
    is_own: bool = False
    part_ratio: float = 0.0
    seen_at_s: float = 0.0
    given_at_s: float | None = None
    load: Annotated[NetworkLoad | None, WrapValidator(_none_if_damaged)] = None

    @property
    def waits(self) -> bool:
        """Whether it holds nothing yet."""
        return not self.held

    @property
    def num_held(self) -> int:
        """Slots that it holds."""
        return sum(len(slots) for slots in self.held.values())

    @property
    def amounts(self) -> Amounts:
        """What it holds, slices by what part of an accelerator they are; nothing while it waits."""
        if self.waits:
            return Amounts()
        gang = self.gang_as_held
        return Amounts(
            num_accelerators=float(self.num_held) if gang.slices is None else self.part_ratio,
            host_bytes=gang.host_bytes,
            network_bytes_per_s=gang.network_bytes_per_s,
        )

    @property
    def gang_as_held(self) -> QueuedGang:
        """Its gang with what goes with the accelerators that it holds: its plan may have become smaller than asked."""
        if self.gang.num_slots in (0, self.num_held):
            return self.gang
        ratio = self.num_held / self.gang.num_slots
        return replace(
            self.gang,
            host_bytes=self.gang.host_bytes * ratio,
            network_bytes_per_s=self.gang.network_bytes_per_s * ratio,
        )


def launch_number(key: AttemptKey, *, number_of_round: int = 0) -> int:
    """Return the number of a launch of a gang beside a run's training: what stands for how much its writer had read."""
    return (key.generation * ROUNDS_PER_GENERATION + number_of_round) * LAUNCHES_PER_ROUND + key.attempt


def generation_of(number: int) -> int:
    """Return the generation of a launch."""
    return number // (ROUNDS_PER_GENERATION * LAUNCHES_PER_ROUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLease:
    """Who decides next; anybody may once ``until_s`` has passed."""

    holder: str
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """How much of a run's journal whoever gave back its claim had read, and until when that is remembered."""

    num_records: int
    remember_until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PastHold:
    """What a run held for its team from when until when (Unix seconds), and holds no more, or not as much."""

    run: RunKey
    team: str
    amounts: Amounts
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundState:
    """All claims to one cluster. ``undecided`` are those that wait and were not decided about since the last change.

    Nobody claims anything of a ground that ``is_closed``: its nodes are shared out elsewhere. ``awake_since_s`` is
    since when it has been decided without a long break. ``usage`` is what teams had used by ``decided_at_s``; what was
    held since then and is not held now is in ``past``.
    """

    claims: Mapping[RunKey, Claim] = field(default_factory=dict)
    given_back: Mapping[RunKey, GivenBack] = field(default_factory=dict)
    lease: QueueLease | None = None
    undecided: frozenset[RunKey] = frozenset()
    is_closed: bool = False
    usage: tuple[TeamUsage, ...] = ()
    decided_at_s: float = 0.0
    awake_since_s: float = 0.0
    past: tuple[PastHold, ...] = ()

    @property
    def held(self) -> Mapping[NodeId, frozenset[int]]:
        """Slots that any run holds, by node."""
        return held_by(self.claims.values())

    @property
    def waiting(self) -> tuple[Claim, ...]:
        """Claims that hold nothing, whoever came first first."""
        waiting = [each for each in self.claims.values() if each.waits]
        return tuple(sorted(waiting, key=lambda each: (each.since_s, each.gang.key)))

    def is_led(self, now_s: float) -> bool:
        """Whether somebody is about to decide, as far as his lease says: he may have died since he took it.

        One that is further away than it can be was taken by a clock that is wrong: nobody waits for it to come true.
        """
        return self.lease is not None and now_s < self.lease.until_s <= now_s + LEASE_S + CLOCK_SKEW_S

    def absent(self, now_s: float) -> tuple[RunKey, ...]:
        """Return who waits, or was given something, and has not come for it for so long that nobody waits for him.

        After a long break, as of all of Airflow, they are given that time to come back.
        """
        return tuple(sorted(run for run, claim in self.claims.items() if self._is_absent(claim, now_s)))

    def awake_from_s(self, now_s: float) -> float:
        """Return since when it has been decided without a long break, if it is decided now."""
        return now_s if now_s - self.decided_at_s > ABSENT_S / 2 else self.awake_since_s

    def not_counted_from_s(self, claim: Claim) -> float:
        """Return since when a claim has held what it holds without that being in ``usage`` or in ``past``."""
        counted_s = [each.until_s for each in self.past if each.run == claim.gang.key]
        return max(self.decided_at_s, claim.started_s, *counted_s)

    def _is_absent(self, claim: Claim, now_s: float) -> bool:
        came_s = claim.seen_at_s if claim.waits else claim.given_at_s
        if not came_s:  # it has taken up what it holds; or an older version wrote it, which does not say
            return False
        return now_s - max(came_s, self.awake_from_s(now_s)) > ABSENT_S

    def may_claim(self, claim: Claim) -> bool:
        """Whether the claim's writer had read as much of the run's journal as anybody before."""
        known, gone = self.claims.get(claim.gang.key), self.given_back.get(claim.gang.key)
        if gone is not None and claim.num_records < gone.num_records:
            return False
        return known is None or claim.num_records >= known.num_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run waits, or holds slots; whatever it had claimed before is replaced.

    ``instead_of`` is the gang whose claim becomes this one: checks give a run what they were made on. ``at_s`` is when
    (Unix seconds); 0: an older version wrote it, which does not say.
    """

    claim: Claim
    instead_of: RunKey | None = None
    remember_until_s: float = 0.0
    at_s: float = 0.0
    kind: Literal["claimed"] = "claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """A run has no claim any more. ``at_s`` as in :class:`Claimed`."""

    run: RunKey
    num_records: int
    remember_until_s: float
    at_s: float = 0.0
    kind: Literal["freed"] = "freed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Nobody claims anything here any more."""

    kind: Literal["closed"] = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """Somebody is about to decide."""

    lease: QueueLease
    kind: Literal["led"] = "led"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Waiting runs got slots, or a reason for waiting; runs that hold slots are to leave. ``holder`` decided it.

    ``usage`` is what teams have used by ``at_s``, ``scope`` what of the cluster was looked at. Nobody waited for those
    that are ``absent``.
    """

    holder: str
    at_s: float
    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    waits: tuple[Waits, ...] = ()
    usage: tuple[TeamUsage, ...] = ()
    scope: str = ""
    absent: tuple[RunKey, ...] = ()
    kind: Literal["decided"] = "decided"


Change = Annotated[Claimed | Freed | Led | Decided | Closed, Field(discriminator="kind")]
AnyChange = Claimed | Freed | Led | Decided | Closed


def apply(state: GroundState, change: AnyChange) -> GroundState:
    """Return the state after ``change``. Raises ``DataError`` where the change cannot have been made from it."""
    match change:
        case Claimed(claim=claim):
            if not state.may_claim(claim):
                run = claim.gang.key
                raise DataError(f"run {run} claims what it has given back: restore the records from a backup")
            after = _claimed(state, change)
        case Freed():
            return _freed(state, change)
        case Led(lease=lease):
            return replace(state, lease=lease)
        case Closed():
            if state.claims:
                raise DataError("a ground was closed that runs claim nodes of: restore the records from a backup")
            return replace(state, is_closed=True)
        case Decided():
            after = _decided(state, change)
    _refuse_twice(after)
    return after


def passed_over(state: GroundState, runs: Iterable[RunKey]) -> GroundState:
    """Return the state with those who are absent waiting for nothing that is kept: they keep their place alone.

    Raises ``DataError`` for one that has taken up what it holds: something of it may be alive there.
    """
    claims = dict(state.claims)
    for run in runs:
        claim = _known(claims, run)
        if claim.held and claim.given_at_s is None:
            raise DataError(f"run {run} lost what it holds while it may be there: restore the records from a backup")
        nothing = replace(claim, held={}, part_ratio=0.0, started_s=0.0, ends_by_s=None, given_at_s=None, load=None)
        claims[run] = replace(nothing, reserved=None, wait=None, yields_to=None, yields_by_s=None)
        claims = _not_awaited(claims, run)
    return replace(state, claims=claims)


def sees(scope: str, claim: Claim) -> bool:
    """Whether whoever has ``scope`` of a cluster has all that a claim's run may be on."""
    return scope in ("", FLEET, claim.scope) or not claim.scope


def forget(state: GroundState, now_s: float) -> GroundState:
    """Return the state without what may be forgotten."""
    kept = {run: gone for run, gone in state.given_back.items() if gone.remember_until_s > now_s}
    return replace(state, given_back=kept)


def held_by(claims: Iterable[Claim]) -> Mapping[NodeId, frozenset[int]]:
    """Return the slots that claims hold, by node."""
    held: dict[NodeId, set[int]] = {}
    for claim in claims:
        for node, slots in claim.held.items():
            held.setdefault(node, set()).update(slots)
    return {node: frozenset(slots) for node, slots in held.items()}


def _claimed(state: GroundState, change: Claimed) -> GroundState:
    claim, before = change.claim, state.claims.get(change.instead_of) if change.instead_of else None
    known = state.claims.get(claim.gang.key)
    is_same = known is not None and (known.gang, known.held) == (claim.gang, claim.held)
    claims = {**state.claims, claim.gang.key: claim}
    if claim.held:  # elsewhere than what others leave for it, as on what its run has rented
        claims = _not_awaited(claims, claim.gang.key)
    if before is not None:
        del claims[before.gang.key]
    past = _past(state, known, claim, change.at_s)
    after = replace(state, claims=claims, undecided=state.undecided if is_same else _waiting(claims), past=past)
    if before is None:
        return after
    gone = GivenBack(num_records=before.num_records + 1, remember_until_s=change.remember_until_s)
    return replace(after, given_back={**after.given_back, before.gang.key: gone})


def _freed(state: GroundState, change: Freed) -> GroundState:
    claims = _not_awaited({run: claim for run, claim in state.claims.items() if run != change.run}, change.run)
    gone = GivenBack(num_records=change.num_records, remember_until_s=change.remember_until_s)
    given_back = {**state.given_back, change.run: gone}
    past = _past(state, state.claims.get(change.run), None, change.at_s)
    return replace(state, claims=claims, given_back=given_back, undecided=_waiting(claims), past=past)


def _past(state: GroundState, before: Claim | None, after: Claim | None, at_s: float) -> tuple[PastHold, ...]:
    """Return what was held since the last decision and is held no more: whoever has left was there all the same.

    What a run has rented is its own, and counts for nobody.
    """
    if before is None or before.waits or before.is_own or not at_s or (after and _counts_alike(before, after)):
        return state.past
    gone = PastHold(
        run=before.gang.key,
        team=before.gang.team,
        amounts=before.amounts,
        from_s=state.not_counted_from_s(before) or at_s,
        until_s=at_s,
    )
    return (*state.past, gone)


def _counts_alike(one: Claim, other: Claim) -> bool:
    return (one.gang.team, one.amounts, one.started_s, one.is_own) == (
        other.gang.team,
        other.amounts,
        other.started_s,
        other.is_own,
    )


def _waiting(claims: Mapping[RunKey, Claim]) -> frozenset[RunKey]:
    return frozenset(run for run, claim in claims.items() if claim.waits)


def _decided(state: GroundState, change: Decided) -> GroundState:
    claims = dict(passed_over(state, change.absent).claims)
    reserved = {each.gang: each for each in change.reservations}
    told = {each.gang: each for each in change.waits}
    for run, claim in claims.items():
        if claim.waits and (run in told or run in reserved):
            claims[run] = replace(claim, reserved=reserved.get(run), wait=told.get(run, claim.wait))
    for start in change.starts:
        claim = _known(claims, start.gang)
        claims[start.gang] = replace(
            claim,
            held=start.held,
            part_ratio=start.part_ratio,
            started_s=change.at_s,
            given_at_s=change.at_s,
            ends_by_s=start.ends_by_s,
            reserved=None,
            wait=None,
        )
        claims = _not_awaited(claims, start.gang)
    for order in change.preemptions:
        claim = _known(claims, order.gang)
        claims[order.gang] = replace(claim, yields_to=order.beneficiary, yields_by_s=order.leaves_by_s)
    undecided = frozenset(run for run in state.undecided if run in claims and not sees(change.scope, claims[run]))
    return replace(
        state,
        claims=claims,
        lease=None,
        undecided=undecided,
        usage=change.usage,
        decided_at_s=change.at_s,
        awake_since_s=state.awake_from_s(change.at_s),
        past=(),
    )


def _not_awaited(claims: Mapping[RunKey, Claim], run: RunKey) -> dict[RunKey, Claim]:
    """Return claims of which none is to leave for ``run`` any more. Who has begun to leave goes on with it."""
    return {
        key: replace(claim, yields_to=None, yields_by_s=None) if claim.yields_to == run else claim
        for key, claim in claims.items()
    }


def _known(claims: Mapping[RunKey, Claim], run: RunKey) -> Claim:
    if run not in claims:
        raise DataError(f"it was decided about run {run}, which claims nothing: restore the records from a backup")
    return claims[run]


def _refuse_twice(state: GroundState) -> None:
    counts = Counter(
        (node, slot) for claim in state.claims.values() for node, slots in claim.held.items() for slot in slots
    )
    both = {
        (node, slot)
        for node, slots in state.held.items()
        if max(slots, default=0) >= FIRST_SLICE
        for slot in slots
        if taken_of([slot], slots - {slot})
    }
    twice = sorted(f"{node}:{slot}" for (node, slot), count in counts.items() if count > 1 or (node, slot) in both)
    if twice:
        raise DataError(f"slots {', '.join(twice)} are held by two runs: restore the records from a backup")


FORM = Form(
    noun="ground",
    version=1,
    empty=GroundState(),
    state_type=GroundState,
    change_type=Change,
    apply=apply,
    forget=forget,
)
