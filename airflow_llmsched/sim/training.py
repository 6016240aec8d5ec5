"""Simulated training in one gang: init, steps, saves, orders, and the faults that befall them."""

from __future__ import annotations

import random
from collections.abc import Callable

from airflow_llmsched.agent import wire
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.progress import AgentSpan, AgentSpanKind, CheckpointMark, StepRecord
from airflow_llmsched.sim.channel import SimChannelHub, SimLine
from airflow_llmsched.sim.checkpoints import SimCheckpoints
from airflow_llmsched.sim.gang import Ending, SimGang
from airflow_llmsched.sim.scripts import Hangs, RankFails, SimTraining, TrainingFault


class SimTrainer:
    """The training loop of one gang, as events of the world. ``faults`` is shared: each happens to one gang, once."""

    def __init__(
        self,
        gang: SimGang,
        training: SimTraining,
        *,
        hub: SimChannelHub,
        checkpoints: SimCheckpoints,
        faults: list[TrainingFault],
        seed: int,
    ) -> None:
        environment = gang.spec.environment
        self._gang = gang
        self._world = gang.world
        self._training = training
        self._root = environment.get(wire.CHECKPOINT_ROOT)
        self._resume_from = environment.get(wire.RESUME_FROM)
        self._line = hub.line(gang.spec.channel_root)
        self._checkpoints = checkpoints
        self._faults = faults
        self._random = random.Random(f"{seed}:{gang.handle.key.name}")  # noqa: S311 - a simulation, not a secret
        self._step = 0
        self._step_start_s = 0.0
        self._saved_step = 0
        self._saved_at_s = gang.world.time_s
        self._is_cut_off = False

    def begin(self) -> None:
        """Start to load and set up."""
        self._line.open(self._gang)
        self._line.beat(self._step if self._resume_from else None)
        start_s = self._world.time_s
        self._later(self._training.init_s, lambda: self._ready(start_s))

    def _ready(self, start_s: float) -> None:
        if self._resume_from is not None:
            step = self._checkpoints.step_of(self._resume_from)
            if step is None:
                self._gang.said[0] = f"cannot load {self._resume_from}"
                self._gang.exit(0, exit_code=1)
                return
            self._step = self._saved_step = step
        self._span(AgentSpanKind.INIT, start_s)
        self._line.beat(self._step)
        self._next_step()

    def _next_step(self) -> None:
        if self._step >= self._training.num_steps:
            self._leave()
            return
        self._step_start_s = self._world.time_s
        vary = 1.0 + self._training.jitter_ratio * (2 * self._random.random() - 1)
        duration_s = vary * self._training.work_s / self._gang.spec.layout.world_size
        self._later(duration_s, self._step_done)

    def _step_done(self) -> None:
        fault = next((each for each in self._faults if each.at_step == self._step + 1), None)
        if fault is not None:
            self._faults.remove(fault)
            self._befall(fault)
            return
        self._step += 1
        record = StepRecord(
            step=self._step,
            start_s=self._step_start_s,
            end_s=self._world.time_s,
            loss=4.0 / (1.0 + 0.05 * self._step),
            num_tokens=self._training.tokens_per_step,
        )
        self._line.step(record)
        self._line.beat(self._step)
        self._after_step()

    def _after_step(self) -> None:
        interval, ordered_s = self._training.checkpoint_interval_steps, self._line.checkpoint_interval_s
        due = interval is not None and self._step % interval == 0
        if ordered_s is not None:
            due = self._world.time_s - self._saved_at_s >= ordered_s
        finished = self._step >= self._training.num_steps
        if self._line.stop_reason is not None or finished:
            self._save(self._leave)
        elif due or self._line.wants_checkpoint(self._gang):
            self._save(self._next_step)
        else:
            self._next_step()

    def _save(self, then: Callable[[], None]) -> None:
        if self._root is None or self._saved_step == self._step:
            then()
            return
        start_s = self._world.time_s
        step = self._step
        path = self._checkpoints.begin_save(self._root, step=step, world_size=self._gang.spec.layout.world_size)

        def durable() -> None:
            self._checkpoints.finish_save(path)
            self._saved_step, self._saved_at_s = step, self._world.time_s
            self._span(AgentSpanKind.SAVE, start_s, step=step)
            self._line.saved(CheckpointMark(step=step, path=path, at_s=self._world.time_s))
            self._line.beat(step)
            then()

        self._later(self._training.save_s, durable)

    def _leave(self) -> None:
        self._later(self._training.leave_s, self._exit)

    def _exit(self) -> None:
        for rank in sorted(self._gang.alive):
            self._gang.exit(rank, exit_code=0)

    def _befall(self, fault: TrainingFault) -> None:
        if isinstance(fault, RankFails):
            rank = min(fault.rank, self._gang.spec.layout.world_size - 1)
            self._gang.said[rank] = fault.says
            self._gang.exit(rank, exit_code=fault.exit_code)
        elif isinstance(fault, Hangs) and fault.lasts_s is not None:
            self._later(fault.lasts_s, self._step_done)

    def _span(self, kind: AgentSpanKind, start_s: float, *, step: int | None = None) -> None:
        for slot in self._gang.spec.placement.slots:
            self._line.span(AgentSpan(kind=kind, rank=slot.rank, start_s=start_s, end_s=self._world.time_s, step=step))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def if_alive() -> None:
            if self._gang.steady or self._lives_on_unseen():
                action()

        self._world.after(delay_s, if_alive)

    def _lives_on_unseen(self) -> bool:
        """Whether rank 0 is a zombie: then it trains and saves, and no word of it gets out or in."""
        if 0 not in self._gang.zombies:
            return False
        if not self._is_cut_off:
            self._is_cut_off = True
            self._line = SimLine(self._world)
        return True


def fence(gang: SimGang) -> None:
    """End a gang as its agents do when nobody renews their lease."""
    ending = Ending(
        phase=GangPhase.LOST,
        reason="agents stopped their ranks: the lease was not renewed",
        fault=FaultKind.GANG_LOST,
    )
    gang.fall(ending, grace_s=gang.spec.grace_s)
