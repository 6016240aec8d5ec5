"""Gathers the facts for ``control.reaper``, and stops what it condemns: by handle, after a durable record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.closing import open_closing_driver
from airflow_llmsched.control.effects import STOP_POLL_S, STOP_SETTLE_S
from airflow_llmsched.control.intents import side_intents
from airflow_llmsched.control.journal import Journal, JournalError
from airflow_llmsched.control.reaper import (
    AirflowWord,
    Ask,
    AskAirflow,
    GangFacts,
    JournalFacts,
    Reap,
    ReaperLimits,
    RunFacts,
    Spare,
    judge,
)
from airflow_llmsched.control.run_state import RunState
from airflow_llmsched.control.runs import MovedOnError
from airflow_llmsched.control.snapshots import rebuild
from airflow_llmsched.domain.gang import FoundGang, GangHandle
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import InternalError, LlmschedError, TransientError
from airflow_llmsched.ports import ChannelWitness, Clock, Engine, ObjectStore

_STOP = EffectPoint("reap.stop")
_ABANDON = EffectPoint("reap.abandon")

REAP_GRACE_S = 10.0
"""What ranks get to end when no journal says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A run of which something lives, and what is to be done about it."""

    facts: RunFacts
    verdict: Reap | Spare

    @property
    def handles(self) -> tuple[GangHandle, ...]:
        """The live gangs."""
        return tuple(each.gang.handle for each in self.facts.gangs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What came of reaping one run: the gangs stopped, and why others, or all, were not."""

    run_key: RunKey
    stopped: tuple[str, ...] = ()
    trouble: str = ""


class Reaper:
    """Looks after one deployment's runs on one engine. Holds no state: each look sees what is there."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        deployment_id: str,
        engine: Engine,
        open_witness: Callable[[str], ChannelWitness],
        ask: AskAirflow,
        clock: Clock,
        limits: ReaperLimits | None = None,
        ground: Ground | None = None,
    ) -> None:
        """``ground`` has the claims to the engine; None where a scheduler of its own rules."""
        self._ground = ground
        self._store = store
        self._deployment_id = deployment_id
        self._engine = engine
        self._open_witness = open_witness
        self._ask = ask
        self._clock = clock
        self._limits = limits or ReaperLimits()

    def look(self) -> tuple[Finding, ...]:
        """Judge every run of which something lives on the engine, whoever's it is. Stops nothing.

        Airflow is asked only about runs that all else speaks against. Raises ``CouldNotLookError`` when the engine
        cannot be asked.
        """
        return tuple(self._judge(key, gangs) for key, gangs in _by_run(self._engine.find_all()).items())

    def reap(self, finding: Finding) -> Reaped:
        """Stop what ``finding`` condemned, if a second look condemns it again. Idempotent.

        Where the run has a journal, its end is recorded before anything is stopped, and only if nothing has been
        recorded since this second look: a run that someone clears meanwhile goes on untouched. Whatever could not be
        done or seen is in the result, so that the next run gets its turn.
        """
        key = finding.facts.run_key
        try:
            return self._reap(key, _by_run(self._engine.find_all()).get(key, ()))
        except MovedOnError as error:
            return Reaped(run_key=key, trouble=f"spared after all: {error}")
        except LlmschedError as error:  # such as records that were damaged since they were read
            return Reaped(run_key=key, trouble=f"not known to be gone: {error}")

    def _reap(self, key: RunKey, gangs: Sequence[FoundGang]) -> Reaped:
        again = self._judge(key, gangs)
        if not isinstance(again.verdict, Reap):
            return Reaped(run_key=key, trouble="" if not gangs else f"spared after all: {again.verdict.reason}")
        for noted in side_intents(self._store, key):
            with _ABANDON:
                self._engine.abandon(noted)
        stopped = self._release(again.facts, f"reaped: {again.verdict.reason}")
        stopped += self._stop([handle for handle in again.handles if handle.key.name not in stopped])
        left = self._left(again.handles)
        trouble = f"told to stop, but still alive: {', '.join(left)}; look at their nodes" if left else ""
        return Reaped(run_key=key, stopped=tuple(name for name in stopped if name not in left), trouble=trouble)

    def _judge(self, key: RunKey, gangs: Sequence[FoundGang]) -> Finding:
        facts = self._facts(key, gangs)
        verdict = self._verdict(facts)
        if isinstance(verdict, Ask):
            facts = replace(facts, airflow=self._word(facts))
            verdict = self._verdict(facts)
        if isinstance(verdict, Ask):
            raise InternalError(f"run {key}: Airflow's word {facts.airflow} was not enough to judge it")
        return Finding(facts=facts, verdict=verdict)

    def _verdict(self, facts: RunFacts) -> Reap | Spare | Ask:
        return judge(facts, deployment_id=self._deployment_id, now_s=self._clock.now_s(), limits=self._limits)

    def _word(self, facts: RunFacts) -> AirflowWord:
        if not facts.dag_id or not facts.run_id:
            return AirflowWord.COULD_NOT_ASK
        return self._ask(facts.dag_id, facts.run_id)

    def _facts(self, key: RunKey, gangs: Sequence[FoundGang]) -> RunFacts:
        origin = next((gang.origin for gang in gangs if gang.origin is not None), None)
        facts = RunFacts(
            run_key=key,
            gangs=tuple(self._hear(gang) for gang in gangs),
            dag_id=origin.dag_id if origin else "",
            run_id=origin.run_id if origin else "",
            deployment_id=origin.deployment_id if origin else None,
        )
        journal = Journal(self._store, key)
        try:
            written = _journal_facts(journal)
            summary = journal.read_summary() if written and not facts.dag_id else None
        except (TransientError, JournalError, InternalError) as error:
            return replace(facts, unreadable=str(error))
        if summary is not None:
            facts = replace(facts, dag_id=summary.dag_id, run_id=summary.run_id)
        return replace(facts, journal=written)

    def _hear(self, gang: FoundGang) -> GangFacts:
        try:
            witness = self._open_witness(gang.channel_root)
            return GangFacts(gang=gang, lease_until_s=witness.lease_until_s(), agents_seen_at_s=witness.last_sign_s())
        except TransientError as error:
            return GangFacts(gang=gang, unheard=str(error))

    def _release(self, facts: RunFacts, reason: str) -> tuple[str, ...]:
        """End the run through its journal, where it has one. Returns the names of what that stopped."""
        if facts.journal is None:
            return ()
        driver = open_closing_driver(
            self._store,
            facts.run_key,
            engine=self._engine,
            clock=self._clock,
            dag_id=facts.dag_id,
            run_id=facts.run_id,
            ground=self._ground,
        )
        return driver.release(reason, num_records=facts.journal.num_records)

    def _stop(self, handles: Sequence[GangHandle]) -> tuple[str, ...]:
        """Stop gangs that no journal speaks for: an evaluation's, or those of a run whose journal is gone."""
        for handle in handles:
            with _STOP:
                self._engine.stop(handle, grace_s=REAP_GRACE_S)
        return tuple(handle.key.name for handle in handles)

    def _left(self, handles: Sequence[GangHandle]) -> list[str]:
        """Return the names of gangs that do not end although they were told to, having given them time."""
        give_up_at_s = self._clock.now_s() + REAP_GRACE_S + STOP_SETTLE_S
        while True:
            statuses = self._engine.poll(handles)
            left = [handle.key.name for handle in handles if not statuses[handle].phase.ended]
            if not left or self._clock.now_s() >= give_up_at_s:
                return left
            self._clock.sleep(STOP_POLL_S)


def _by_run(gangs: Iterable[FoundGang]) -> dict[RunKey, tuple[FoundGang, ...]]:
    """Group by the run that a gang serves: an evaluation's gang has a key of its own."""
    found: dict[RunKey, tuple[FoundGang, ...]] = {}
    for gang in gangs:
        key = gang.origin.run if gang.origin else gang.handle.key.run
        found[key] = (*found.get(key, ()), gang)
    return found


def _journal_facts(journal: Journal) -> JournalFacts | None:
    rebuilt = rebuild(journal)
    if rebuilt.number == 0:
        return None
    state: RunState = rebuilt.state
    (last,) = journal.records(after=rebuilt.number - 1)[:1]
    return JournalFacts(
        num_records=rebuilt.number, phase=state.phase, written_at_s=max((event.at_s for event in last), default=0.0)
    )
