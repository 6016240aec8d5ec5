"""Gives back what runs claim that are over: a worker may have claimed late, and died before it saw that it was.

Whatever a run has alive is the reaper's of gangs (``control.reaping``) first: nothing is given back under a live gang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.closing import open_closing_driver
from airflow_llmsched.control.effects import STOP_SETTLE_S
from airflow_llmsched.control.intents import side_intents
from airflow_llmsched.control.journal import Journal, JournalError
from airflow_llmsched.control.reaper import AirflowWord, AskAirflow, Reap, ReaperLimits, Spare
from airflow_llmsched.control.runs import MovedOnError
from airflow_llmsched.control.snapshots import Rebuilt, rebuild
from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import InternalError, LlmschedError, TransientError
from airflow_llmsched.ports import Clock, Engine, InventoryEngine, ObjectStore

_OVER = {
    AirflowWord.FINISHED: "Airflow calls its DAG run finished",
    AirflowWord.UNKNOWN: "Airflow does not know its DAG run",
}


_ABANDON = EffectPoint("reap.abandon_claim")

MAX_SHOWN = 5
"""Nodes that a reason names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFinding:
    """A claim, what its run's journal has (``num_records``), and what is to be done about it.

    ``launches`` are those noted of the gangs beside the run's training, where it is one of theirs.
    """

    claim: Claim
    verdict: Reap | Spare
    num_records: int = 0
    launches: tuple[AttemptKey, ...] = ()

    @property
    def run(self) -> RunKey:
        """The run that claims."""
        return self.claim.gang.key


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReaped:
    """What came of giving back one claim: whether it is gone, and why if not."""

    run: RunKey
    is_gone: bool
    trouble: str = ""


class ClaimReaper:
    """Looks after the claims to one engine. Holds no state."""

    def __init__(
        self,
        ground: Ground,
        *,
        store: ObjectStore,
        engine: Engine,
        ask: AskAirflow,
        clock: Clock,
        limits: ReaperLimits | None = None,
    ) -> None:
        self._ground = ground
        self._store = store
        self._engine = engine
        self._ask = ask
        self._clock = clock
        self._limits = limits or ReaperLimits()

    def look(self) -> tuple[ClaimFinding, ...]:
        """Judge every claim. Gives back nothing. Raises ``StoreError``, ``CouldNotLookError``."""
        claims = self._ground.state().claims
        return tuple(self._judge(claims[run]) for run in sorted(claims))

    def reap(self, finding: ClaimFinding) -> ClaimReaped:
        """Give back what ``finding`` condemned, if a second look condemns it again. Idempotent; raises nothing.

        The end of a run that is not over by its journal is recorded there first.
        """
        run = finding.run
        try:
            claim = self._ground.state().claims.get(run)
            if claim is None:
                return ClaimReaped(run=run, is_gone=True)
            again = self._judge(claim)
            if not isinstance(again.verdict, Reap):
                return ClaimReaped(run=run, is_gone=False, trouble=f"spared after all: {again.verdict.reason}")
            if claim.beside is not None:
                return self._disown(claim, again.launches)
            open_closing_driver(
                self._store,
                run,
                engine=self._engine,
                clock=self._clock,
                dag_id=claim.dag_id,
                run_id=claim.run_id,
                ground=self._ground,
            ).release(f"reaped: {again.verdict.reason}", num_records=again.num_records)
            if again.num_records == 0:
                self._ground.disown(claim)
        except MovedOnError as error:
            return ClaimReaped(run=run, is_gone=False, trouble=f"spared after all: {error}")
        except LlmschedError as error:  # such as records that were damaged since they were read
            return ClaimReaped(run=run, is_gone=False, trouble=f"not known to be gone: {error}")
        return self._ended(run)

    def _disown(self, claim: Claim, launches: Sequence[AttemptKey]) -> ClaimReaped:
        """Give back a claim beside a training, so that no launch which was noted when it was judged is still made."""
        for key in launches:
            with _ABANDON:
                self._engine.abandon(key)
        self._ground.disown(claim)
        return self._ended(claim.gang.key)

    def _ended(self, run: RunKey) -> ClaimReaped:
        is_gone = run not in self._ground.state().claims
        return ClaimReaped(run=run, is_gone=is_gone, trouble="" if is_gone else "it claims something anew: look again")

    def _judge(self, claim: Claim) -> ClaimFinding:
        elsewhere = self._elsewhere(claim)
        if elsewhere:
            return ClaimFinding(claim=claim, verdict=Spare(reason=elsewhere))
        if claim.beside is not None:
            launches = side_intents(self._store, claim.beside)
            verdict = self._verdict_beside(claim, launches)
            return ClaimFinding(claim=claim, verdict=verdict, launches=launches)
        run = claim.gang.key
        try:
            rebuilt = rebuild(Journal(self._store, run))
        except (TransientError, JournalError, InternalError) as error:
            return ClaimFinding(claim=claim, verdict=Spare(reason=f"its journal could not be read: {error}"))
        return ClaimFinding(claim=claim, verdict=self._verdict(claim, rebuilt), num_records=rebuilt.number)

    def _elsewhere(self, claim: Claim) -> str:
        """Say which nodes of a claim this engine does not list: on those a gang of it may live unseen; empty: none.

        All clusters of a fleet are looked at together, whichever the engine is.
        """
        if self._ground.name == FLEET or not isinstance(self._engine, InventoryEngine):
            return ""
        others = sorted(set(claim.held) - set(self._engine.inventory))
        shown = ", ".join(others[:MAX_SHOWN])
        return f"it holds {shown}, which is no node of these options: reap with those of its DAG" if others else ""

    def _verdict(self, claim: Claim, rebuilt: Rebuilt) -> Reap | Spare:
        handles = self._engine.find(claim.gang.key)
        if any(not status.phase.ended for status in self._engine.poll(handles).values()):
            return Spare(reason="its gang is alive")
        idle_s = self._clock.now_s() - max(self._written_at_s(claim), claim.since_s)
        # A worker records the end right after it has given back: between the two, the run looks as if it had not.
        if rebuilt.state.phase.terminal and idle_s > STOP_SETTLE_S:
            return Reap(reason=f"the run is {rebuilt.state.phase}, and nothing of it is alive")
        return self._told(claim, idle_s)

    def _verdict_beside(self, claim: Claim, launches: Sequence[AttemptKey]) -> Reap | Spare:
        """Judge what a gang beside a training claims: it has no journal, and its launches are noted."""
        handles = [handle for run in {key.run for key in launches} for handle in self._engine.find(run)]
        if any(not status.phase.ended for status in self._engine.poll(handles).values()):
            return Spare(reason="a gang beside its run's training is alive")
        return self._told(claim, self._clock.now_s() - max(claim.since_s, claim.started_s))

    def _told(self, claim: Claim, idle_s: float) -> Reap | Spare:
        if idle_s < self._limits.unleased_s:
            return Spare(reason=f"its run goes on: the last record is of {idle_s:.0f} s ago")
        word = self._ask(claim.dag_id, claim.run_id) if claim.dag_id else AirflowWord.COULD_NOT_ASK
        if word not in _OVER:
            return Spare(reason="Airflow calls its DAG run running, or could not be asked")
        return Reap(reason=f"nothing of it is alive, the last record is of {idle_s:.0f} s ago, and {_OVER[word]}")

    def _written_at_s(self, claim: Claim) -> float:
        journal = Journal(self._store, claim.gang.key)
        last = journal.records(after=max(0, journal.num_records() - 1))
        return max((event.at_s for record in last for event in record), default=0.0)
