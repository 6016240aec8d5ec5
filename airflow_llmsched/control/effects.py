"""Performs the run machine's commands with the ports, and returns the events that came of it. Knows no journal.

Every effect may be performed again after a crash: finding comes before submitting, stopping is idempotent and by id,
and a gang counts as gone only once its engine says that it ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.checkpoints.copying import copy_checkpoint
from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.arbiter import Arbitration
from airflow_llmsched.control.bringing import Bringer, CopyCheckpoint
from airflow_llmsched.control.capacity import CapacityChooser, Holds, Standing, Waits
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.control.fencing import Fences
from airflow_llmsched.control.fit_nodes import without
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.control.launch import build_gang, channel_root_of
from airflow_llmsched.control.places import CheckpointPlaces, region_name
from airflow_llmsched.control.planning import Planner, choose_plan, refused_yet, retry_at_s
from airflow_llmsched.control.poller import MAX_BACKOFF_S
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.rented_nodes import TermsOf, not_joined, only_rented
from airflow_llmsched.control.resume import CheckpointShelf
from airflow_llmsched.control.reviewing import Reviewer
from airflow_llmsched.control.watching import Unseen, ask
from airflow_llmsched.domain.decision import Decision, Finish
from airflow_llmsched.domain.fleet import cluster_of, own_name
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.health import FailureClass, Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.topology import NO_TERMS, TopologyTree
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, LaunchError, TransientError
from airflow_llmsched.planner.policies.failure import decide
from airflow_llmsched.ports import CheckpointFormat, Clock, Engine, EngineFeature, RunChannel

_PREPARE = EffectPoint("run.prepare_channel")
_SUBMIT = EffectPoint("run.submit")
_STOP = EffectPoint("run.stop")
_ABANDON = EffectPoint("run.abandon")
_GIVE_UP = EffectPoint("run.give_up")
_RENEW_TO_LEAVE = EffectPoint("run.renew_to_leave")
_ASK_TO_LEAVE = EffectPoint("run.ask_to_leave")

STOP_SETTLE_S = 15.0
"""How long an engine may take to report an end beyond the grace it was given."""

STOP_POLL_S = 0.1

JOIN_S = 300.0
"""For how long the rest of what is rented is waited for once some of it has joined the engine."""


class Effects:
    """The hands of one run driver."""

    def __init__(
        self,
        *,
        context: RunContext,
        engine: Engine,
        planner: Planner,
        checkpoints: CheckpointFormat,
        open_channel: Callable[[str], RunChannel],
        clock: Clock,
        leases: Callable[[], Sequence[Lease]] = tuple,
        terms_of: TermsOf = lambda _: NO_TERMS,
        capacity: CapacityChooser | None = None,
        copy: CopyCheckpoint = copy_checkpoint,
        arbiter: Arbitration | None = None,
    ) -> None:
        """``leases`` tells what the run has rented: where the engine has such nodes, it plans on no others.

        ``terms_of`` tells the terms of a lease, at which its nodes are planned on.
        ``capacity`` chooses what is rented; None: nobody does, or somebody has. ``copy`` is how checkpoints get to
        another cluster. ``arbiter`` shares the engine's nodes among runs; None: the engine does, or nobody.
        """
        self._arbiter = arbiter
        self._leases = leases
        self._terms_of = terms_of
        self._capacity = capacity
        self._reviewer = Reviewer(context=context, capacity=capacity)
        self._context = context
        self._engine = engine
        self._planner = planner
        self._places = CheckpointPlaces(context.checkpoint_root, context.places, cluster_named=self._cluster_named)
        self._shelf = CheckpointShelf(checkpoints, self._places, context.verify_depth)
        self._bringer = Bringer(self._places, shelf=self._shelf, copy=copy, clock=clock)
        self._open_channel = open_channel
        self._clock = clock
        self._fences = Fences(
            run=context.run_key,
            lease_s=context.lease_s,
            grace_s=context.workload.launcher.grace_s,
            engine=engine,
            open_channel=open_channel,
            channel_root_of=lambda key: channel_root_of(context, key),
            clock=clock,
        )
        self._table: Mapping[type[Any], Callable[[Any], tuple[ev.AnyEvent, ...]]] = {
            cmd.StopOthers: self._stop_others,
            cmd.ChoosePlan: self._choose_plan,
            cmd.ChooseCheckpoint: self._choose_checkpoint,
            cmd.RecordIntent: self._record_intent,
            cmd.Launch: self._launch,
            cmd.Review: self._review,
            cmd.StopGang: self._stop_gang,
            cmd.Assess: self._assess,
            cmd.FinishRun: self._finish,
            cmd.FailRun: self._fail,
            cmd.CancelRun: self._cancel,
        }

    def perform(self, command: cmd.Command) -> tuple[ev.AnyEvent, ...]:
        """Do what ``command`` says and return what happened, in order. Tries again where nobody could look.

        Raises:
            JournalRaceError: somebody who had read more of the journal claims nodes for the run: read it again.
            TransientError: an outside system could not be asked ``max_look_errors`` times in a row, or its answer is
                unknown. Nothing is to be concluded; the same command may be performed again later.
            SpecError: the engine cannot express the gang.
        """
        pause_s = self._context.poll_interval_s
        for _ in range(self._context.max_look_errors):
            try:
                return self._table[type(command)](command)
            except JournalRaceError:
                raise
            except TransientError:
                self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_BACKOFF_S)
        return self._table[type(command)](command)

    def live(self) -> tuple[GangHandle, ...]:
        """Return the run's gangs that may still have ranks: those that cannot be judged alone, too.

        Raises ``CouldNotLookError`` when none could be seen.
        """
        told = ask(self._engine, self._engine.find(self._context.run_key))
        unseen = [each.reason for each in told.values() if isinstance(each, Unseen)]
        if unseen and len(unseen) == len(told):
            raise CouldNotLookError(unseen[0])
        ended = {handle for handle, each in told.items() if isinstance(each, GangStatus) and each.phase.ended}
        return tuple(handle for handle in told if handle not in ended)

    def stop(self, handle: GangHandle) -> GangStatus:
        """Stop a gang and return its end once nothing of it is left.

        Raises ``CouldNotLookError`` when that cannot be seen in time: a successor must not start beside it.
        """
        grace_s = self._context.workload.launcher.grace_s
        with _STOP:
            self._engine.stop(handle, grace_s=grace_s)
        status = self._wait_for_end(handle, limit_s=grace_s + STOP_SETTLE_S)
        if status is None:
            raise CouldNotLookError(
                f"gang {handle.key.name} ({handle.native_id}) is still alive {grace_s + STOP_SETTLE_S:.0f} s after it "
                "was told to stop: look at its nodes; nothing else of this run is started before it is gone"
            )
        return status

    def stop_live(self, *, through: AttemptKey | None, keep: AttemptKey | None = None) -> tuple[str, ...]:
        """Stop every live gang of the run up to attempt ``through`` (None: all) but ``keep``; return their names.

        More than the current one can only be the late doing of a worker that had been taken for dead. A later one than
        ``through``, the last attempt in the journal as the caller read it, means that the caller itself was taken for
        dead and the run went on: that gang is not its to stop.
        """
        live = [handle for handle in self.live() if handle.key != keep and not _later(handle.key, through)]
        for handle in live:
            self.stop(handle)
        return tuple(handle.key.name for handle in live)

    def free(self, *, num_records: int) -> None:
        """Give back the nodes that the run holds, once nothing of it is alive. Raises ``StoreError``.

        Who gets them is decided here as well, if it can be: whoever waits sees to it otherwise.
        """
        if self._arbiter is not None:
            self._arbiter.free(num_records=num_records, tree=self._engine.topology)

    def _abandon(self, key: AttemptKey | None) -> None:
        """Give up an attempt whose gang nobody has seen, before the run's live gangs are looked for.

        Its submitter may stand still, and go on when all the others have gone.
        """
        if key is not None:
            with _ABANDON:
                self._engine.abandon(key)

    def _give_up(self, key: AttemptKey) -> None:
        """Have nothing start under ``key``, though a worker that stands still may yet submit it.

        Raises ``CouldNotLookError`` when a gang has just been started under it: that one is to be found first.
        """
        with _GIVE_UP:
            is_given_up = self._engine.abandon(key)
        if not is_given_up:
            raise CouldNotLookError(f"gang {key.name} was started by another worker just now: look again")

    def _stop_others(self, command: cmd.StopOthers) -> tuple[ev.AnyEvent, ...]:
        self._abandon(command.unlaunched)
        stopped = self.stop_live(through=command.through)
        return (ev.OthersStopped(at_s=self._clock.now_s(), stopped=stopped),)

    def _choose_plan(self, command: cmd.ChoosePlan) -> tuple[ev.AnyEvent, ...]:
        if self._too_late():
            return (ev.DeadlineReached(at_s=self._clock.now_s()),)
        fence = self._fences.awaited(command.unfenced)
        if fence is not None:
            return (fence,)
        refused = self._hold(command)
        if refused is not None:
            return (refused,)
        tree, leases = self._engine.topology(), self._leases()
        rented = only_rented(tree, leases, terms_of=self._terms_of)
        waits = self._not_joined(command, tree if rented else None, leases)
        if waits and (rented is None or self._joins(command)):
            return (refused_yet(waits, command, self._context, now_s=self._clock.now_s()),)
        if self._arbiter is not None:
            return (self._arbiter.choose(command, rented or tree, is_own=rented is not None),)
        tree = without(rented or tree, self._context.unfit)
        return (choose_plan(command, self._context, tree, self._planner, now_s=self._clock.now_s()),)

    def _not_joined(self, command: cmd.ChoosePlan, tree: TopologyTree | None, leases: Sequence[Lease]) -> str:
        """Say which rented machines the engine has yet to get; before the first launch, also which it cannot use."""
        if EngineFeature.NODES_ARE_FIXED in self._engine.features:
            return ""
        return not_joined(leases, tree, must_be_usable=command.first)

    def _joins(self, command: cmd.ChoosePlan) -> bool:
        """Whether machines may yet follow those that have joined: a gang of the first few would leave them idle."""
        now_s = self._clock.now_s()
        since_s = now_s if command.waiting_since_s is None else command.waiting_since_s
        return now_s - since_s < min(JOIN_S, self._context.capacity_wait_s)

    def _cluster_named(self, node: NodeId) -> str:
        """Return the region that a node was rented in, where regions have storages of their own; else its cluster."""
        if any("/" in name for name in self._context.places):
            for lease in self._leases():
                if any(node in (each.id, each.address) for each in lease.nodes):
                    return region_name(lease.pool.cloud, lease.pool.region)
        return cluster_of(node)

    def _hold(self, command: cmd.ChoosePlan) -> ev.PlanRefused | None:
        """Have capacity to plan on, where somebody chooses it; else return why there is none, and when to ask again."""
        if self._capacity is None or self._context.num_steps is None:
            return None
        seen = () if command.newest is not None else self._newest_checkpoint(command.line)
        newest = seen[0].checkpoint if seen else command.newest
        step = 0 if newest is None else newest.step
        left_ratio = max(0.0, 1.0 - step / self._context.num_steps)
        saved_in = self._places.storage_of(newest)
        standing = Standing(left_ratio=left_ratio, pace_ratio=command.pace_ratio, saved_in=saved_in)
        answer = self._capacity.hold(standing)
        if isinstance(answer, Holds):
            return None
        again_at_s = answer.again_at_s if isinstance(answer, Waits) else None
        return ev.PlanRefused(at_s=self._clock.now_s(), reason=answer.reason, retry_at_s=again_at_s)

    def _review(self, command: cmd.Review) -> tuple[ev.AnyEvent, ...]:
        seen = self._newest_checkpoint(command.line)
        newest = seen[0].checkpoint if seen else None
        reviewed = self._reviewer.review(
            command,
            durable_step=0 if newest is None else newest.step,
            now_s=self._clock.now_s(),
            saved_in=self._places.storage_of(newest),
        )
        return (*seen, reviewed)

    def _choose_checkpoint(self, command: cmd.ChooseCheckpoint) -> tuple[ev.AnyEvent, ...]:
        required = self._context.workload.checkpoint.require_resume
        chosen = self._shelf.choose(
            command.plan.layout,
            line=command.line,
            newest=command.newest,
            required=required,
            at_s=self._clock.now_s(),
        )
        if isinstance(chosen, ev.CheckpointChosen):
            chosen = self._bringer.bring(chosen, command.plan)
        return (chosen,)

    def _record_intent(self, command: cmd.RecordIntent) -> tuple[ev.AnyEvent, ...]:
        root = channel_root_of(self._context, command.key)
        own_folder = self._context.workload.checkpoint.separate_paths
        intended = ev.LaunchIntended(
            at_s=self._clock.now_s(),
            key=command.key,
            channel_root=root,
            own_folder=own_folder,
            checkpoint_root=self._places.of(command.plan).root if len(self._places.all) > 1 else "",
        )
        return (intended,)

    def _launch(self, command: cmd.Launch) -> tuple[ev.AnyEvent, ...]:
        known = any(handle.key == command.key for handle in self._engine.find(self._context.run_key))
        self.stop_live(through=command.key, keep=command.key)
        # Asked for whoever stopped it: the worker that did may have died before it could say so.
        if not known and (fence := self._fences.awaited()) is not None:
            self._give_up(command.key)
            reason = "a gang of the run that nobody knew of has been stopped, not all of it in sight"
            return (ev.LaunchRefused(at_s=fence.at_s, reason=reason, retry_at_s=fence.until_s),)
        nodes = [own_name(node) for node in command.plan.placement.nodes]
        with _PREPARE:
            links = self._open_channel(command.channel_root).prepare(nodes, at_s=self._clock.now_s())
        gang = build_gang(
            self._context,
            key=command.key,
            plan=command.plan,
            place=self._places.of(command.plan),
            channel_root=command.channel_root,
            checkpoint=command.checkpoint,
            own_folder=command.own_folder,
            channel_links=links,
            excluded=command.excluded,
        )
        request = self._engine.render(gang)
        try:
            with _SUBMIT:
                handle = self._engine.submit(request, key=command.key)
        except AbandonedError as error:
            # By a worker that then moved the run on, and this event will come second; or that died before it could.
            now_s = self._clock.now_s()
            return (ev.LaunchRefused(at_s=now_s, reason=str(error), retry_at_s=now_s),)
        except CapacityError as error:
            self._give_up(command.key)
            now_s = self._clock.now_s()
            again_at_s = retry_at_s(
                waiting_since_s=command.waiting_since_s,
                now_s=now_s,
                wait_s=self._context.capacity_wait_s,
                poll_s=self._context.capacity_poll_s,
            )
            return (ev.LaunchRefused(at_s=now_s, reason=str(error), retry_at_s=again_at_s),)
        except LaunchError as error:
            self._abandon(command.key)  # where it came to a gang at all, that has ended
            now_s = self._clock.now_s()
            fault = Fault(kind=FaultKind.START_FAILED, summary=str(error), at_s=now_s)
            return (ev.LaunchRefused(at_s=now_s, reason=str(error), fault=fault),)
        # Submitting under a known key starts nothing new, but completes what a worker that died had only begun.
        event = ev.Adopted if known else ev.Launched
        return (event(at_s=self._clock.now_s(), handle=handle),)

    def _stop_gang(self, command: cmd.StopGang) -> tuple[ev.AnyEvent, ...]:
        if command.save_first:
            self._ask_to_leave(command)
        status = self.stop(command.handle)
        last_step = self._last_step(command.channel_root) if status.phase is GangPhase.SUCCEEDED else None
        seen = self._newest_checkpoint(command.line) if command.save_first else ()
        completed = self._completed(status, last_step, asked_to_leave=command.save_first) or (
            status.phase is not GangPhase.FAILED and self._is_last(seen)
        )
        return (
            *seen,
            ev.Stopped(
                at_s=self._clock.now_s(),
                key=command.handle.key,
                status=status,
                completed=completed,
                last_step=last_step,
            ),
        )

    def _assess(self, command: cmd.Assess) -> tuple[ev.AnyEvent, ...]:
        seen = self._newest_checkpoint(command.line)
        # A rank that fails after the last save is the trainer's own word, which success must not drown.
        if command.fault.failure_class is not FailureClass.CODE and self._is_last(seen):
            step = seen[0].checkpoint.step
            reason = f"the gang was over before its ranks had left, but step {step}, the last, is saved"
            decision: Decision = Finish(step=step, reason=f"{reason}: {command.fault.summary}")
        else:
            seen = tuple(each for each in seen if command.newest is None or each.checkpoint.step > command.newest.step)
            history = command.history.progressed() if seen else command.history
            decision = decide(command.fault, history, self._context.workload.retries)
        return (*seen, ev.Decided(at_s=self._clock.now_s(), decision=decision))

    def _finish(self, command: cmd.FinishRun) -> tuple[ev.AnyEvent, ...]:
        seen = self._newest_checkpoint(command.line)
        checkpoint = seen[0].checkpoint if seen else None
        note, last_step = command.note, command.last_step
        if checkpoint is not None and last_step is not None and checkpoint.step < last_step:
            note = f"trained to step {last_step}, but the newest sound checkpoint is that of step {checkpoint.step}"
            note += "".join(f"; {reason}" for reason in self._shelf.unsound(command.line, above_step=checkpoint.step))
        if checkpoint is not None and last_step is not None and checkpoint.step > last_step:
            last_step = checkpoint.step  # a gang that was cut short could not report its last steps
        if checkpoint is None:
            note = f"no sound checkpoint below {self._context.checkpoint_root}: there is nothing to evaluate or resume"
            note += "".join(f"; {reason}" for reason in self._shelf.unsound(command.line, above_step=-1))
        self.free(num_records=command.num_records)
        done = ev.RunSucceeded(at_s=self._clock.now_s(), checkpoint=checkpoint, last_step=last_step, note=note)
        return (*seen, done)

    def _fail(self, command: cmd.FailRun) -> tuple[ev.AnyEvent, ...]:
        self.free(num_records=command.num_records)
        return (ev.RunFailed(at_s=self._clock.now_s(), reason=command.reason, fault=command.fault),)

    def _cancel(self, command: cmd.CancelRun) -> tuple[ev.AnyEvent, ...]:
        self._abandon(command.unlaunched)
        stopped = self.stop_live(through=command.through)
        self.free(num_records=command.num_records)
        return (ev.RunCancelled(at_s=self._clock.now_s(), stopped=stopped),)

    def _ask_to_leave(self, command: cmd.StopGang) -> None:
        """Have the ranks save and exit, and give them their grace for it. If they cannot be told, stopping must do."""
        with contextlib.suppress(TransientError):
            channel = self._open_channel(command.channel_root)
            if self._context.lease_s is not None:
                with _RENEW_TO_LEAVE:
                    channel.renew(until_s=self._clock.now_s() + self._context.lease_s)
            with _ASK_TO_LEAVE:
                channel.order_stop(reason=command.reason)
            self._wait_for_end(command.handle, limit_s=self._context.workload.launcher.grace_s)

    def _wait_for_end(self, handle: GangHandle, *, limit_s: float) -> GangStatus | None:
        give_up_at_s = self._clock.now_s() + limit_s
        while True:
            status = self._engine.poll([handle])[handle]
            if status.phase.ended:
                return status
            if self._clock.now_s() >= give_up_at_s:
                return None
            self._clock.sleep(STOP_POLL_S)

    def _last_step(self, channel_root: str) -> int | None:
        reports = read_all(self._open_channel(channel_root))
        steps = [step.step for report in reports for step in report.steps]
        steps += [rank.step for report in reports for rank in report.ranks if rank.step is not None]
        return max(steps, default=None)

    def _completed(self, status: GangStatus, last_step: int | None, *, asked_to_leave: bool) -> bool:
        if status.phase is not GangPhase.SUCCEEDED:
            return False
        num_steps = self._context.num_steps
        if asked_to_leave and (num_steps is None or last_step is None):
            return False  # it left because it was asked to
        return fault_of(status, last_step=last_step, num_steps=num_steps) is None

    def _newest_checkpoint(self, line: CheckpointLine) -> tuple[ev.CheckpointSeen, ...]:
        found = self._shelf.newest_sound(line)
        if found is None:
            return ()
        ref, verdict = found
        return (ev.CheckpointSeen(at_s=self._clock.now_s(), checkpoint=ref, digest=verdict.digest),)

    def _is_last(self, seen: tuple[ev.CheckpointSeen, ...]) -> bool:
        """Whether nothing is left to train: relaunching a gang would only have it leave again."""
        num_steps = self._context.num_steps
        return num_steps is not None and any(each.checkpoint.step >= num_steps for each in seen)

    def _too_late(self) -> bool:
        return self._context.deadline_s is not None and self._clock.now_s() >= self._context.deadline_s


def _later(key: AttemptKey, than: AttemptKey | None) -> bool:
    return than is not None and (key.generation, key.attempt) > (than.generation, than.attempt)
