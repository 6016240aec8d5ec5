"""The training loop: one optimizer step after another, with reports, saves and orders in between."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

from airflow_llmsched import agent
from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers import checkpointing
from airflow_llmsched.trainers.data import TokenStream
from airflow_llmsched.trainers.faults import Faults
from airflow_llmsched.trainers.folders import CheckpointFolders, TrainerState, read_state
from airflow_llmsched.trainers.settings import TrainPhase, TrainSettings

# Axes: B = sequence of this rank's share, T = position


@dataclass(slots=True, kw_only=True)
class Trainer:
    """All that a rank trains with. ``step`` and ``num_tokens_seen`` say where it stands; the rest does not change."""

    settings: TrainSettings
    model: nn.Module
    optimizer: torch.optim.Optimizer
    stream: TokenStream
    dataset_digest: str
    folders: CheckpointFolders | None
    faults: Faults
    step: int = 0
    num_tokens_seen: int = 0
    saved_step: int | None = None
    saved_at_s: float = 0.0

    def run(self) -> None:
        """Train to the last step, or until an order to stop; what was trained is saved either way."""
        self.saved_at_s = time.monotonic()
        agent.ready()
        stopping = False
        while self.step < self.settings.num_steps and not stopping:
            self.faults.before_step(self.step + 1)
            save_asked, stopping = self._train_step()
            if save_asked or stopping or self.step == self.settings.num_steps:
                self._save()

    def _train_step(self) -> tuple[bool, bool]:
        """Train one step. Return whether any rank was asked to save, and to stop."""
        phase = self.settings.phase_at(self.num_tokens_seen)
        step = self.step + 1
        learning_rate = self.settings.learning_rate_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        share_loss = self._accumulate_gradients(phase)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

        # One small exchange makes every rank see the same loss and decide alike.
        exchanged = torch.tensor([share_loss, self._save_wanted(step), agent.stop_requested()], dtype=torch.float64)
        dist.all_reduce(exchanged)
        loss = exchanged[0].item() / dist.get_world_size()
        if not math.isfinite(loss):
            hint = f"the loss of step {step} is {loss}: lower it, or warm up longer"
            raise SpecError(path="learning_rate", value=self.settings.learning_rate, hint=hint)
        self.step = step
        self.num_tokens_seen += phase.tokens_per_step
        agent.report(step=step, loss=loss, tokens=phase.tokens_per_step)
        return exchanged[1].item() > 0, exchanged[2].item() > 0

    def _accumulate_gradients(self, phase: TrainPhase) -> float:
        """Add up the gradients of this rank's share of the global batch; return the share's mean loss."""
        inputs_BT, targets_BT = self._share(phase)
        size = self.settings.micro_batch_size
        micro_batches = list(zip(torch.split(inputs_BT, size), torch.split(targets_BT, size), strict=True))
        sharded = cast("FSDPModule", self.model)
        share_loss = 0.0
        for index, (inputs, targets) in enumerate(micro_batches):
            sharded.set_requires_gradient_sync(index == len(micro_batches) - 1)
            logits = self.model(inputs)
            mean = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss = mean * (len(inputs) / len(inputs_BT))
            torch.autograd.backward(loss)
            share_loss += loss.item()
        return share_loss

    def _share(self, phase: TrainPhase) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of this rank's sequences: its own stretch of the step's tokens."""
        length = phase.sequence_length_tokens
        num_tokens = phase.tokens_per_step // dist.get_world_size()
        inputs, targets = self.stream.read(self.num_tokens_seen + dist.get_rank() * num_tokens, num_tokens)
        inputs_BT = torch.from_numpy(inputs).long().view(-1, length)
        targets_BT = torch.from_numpy(targets).long().view(-1, length)
        return inputs_BT, targets_BT

    def _save_wanted(self, step: int) -> bool:
        every_steps, every_s = self.settings.checkpoint_interval_steps, self.settings.checkpoint_interval_s
        ordered_s = agent.checkpoint_interval_s()
        if ordered_s is not None:  # control has found a better interval than the one the run was launched with
            every_steps, every_s = None, ordered_s
        if every_steps is not None and step % every_steps == 0:
            return True
        if every_s is not None and dist.get_rank() == 0 and time.monotonic() - self.saved_at_s >= every_s:
            return True
        return agent.checkpoint_requested()

    def _save(self) -> None:
        if self.folders is None or self.saved_step == self.step:
            return
        state = TrainerState(
            step=self.step,
            num_tokens_seen=self.num_tokens_seen,
            dataset_digest=self.dataset_digest,
            settings=json.loads(self.settings.to_json()),
        )
        with agent.saving(step=self.step):
            checkpointing.save(
                self.folders,
                state,
                model=self.model,
                optimizer=self.optimizer,
                before_seal=lambda: self.faults.before_seal(self.step),
            )
            # Orders that came while training stood still are fulfilled by this save: take them in before saying so.
            agent.checkpoint_requested()
            agent.checkpoint_saved(step=self.step, path=str(self.folders.finished(self.step)))
            if dist.get_rank() == 0:
                self.folders.prune(saved_step=self.step)
        self.saved_step, self.saved_at_s = self.step, time.monotonic()

    def resume(self, path: str) -> None:
        """Go on from the checkpoint at ``path``. Raises ``DataError`` (damaged) or ``SpecError`` (of another run)."""
        state = checkpointing.load(path, model=self.model, optimizer=self.optimizer)
        if state.dataset_digest != self.dataset_digest:
            hint = f"checkpoint {path} was trained on dataset {state.dataset_digest[:12]}; resume with that one"
            raise SpecError(path="dataset", value=self.dataset_digest[:12], hint=hint)
        refuse_other_run(TrainSettings.from_plain(state.settings), self.settings, path=path)
        self.step, self.num_tokens_seen, self.saved_step = state.step, state.num_tokens_seen, state.step

    def start_with(self, path: str) -> None:
        """Take the weights, and nothing else, of the checkpoint at ``path``, which another run may have saved.

        Raises:
            DataError: the checkpoint is damaged or unfinished, or no checkpoint of this trainer.
            SpecError: its model has another shape.
        """
        refuse_other_model(TrainSettings.from_plain(read_state(path).settings), self.settings, path=path)
        checkpointing.load_model(path, model=self.model)


def refuse_uneven_share(settings: TrainSettings, *, num_ranks: int) -> None:
    """Raise ``SpecError`` unless ``num_ranks`` can share the global batch of every phase evenly.

    Asked before the ranks meet: one that has met the others and leaves takes their words with it.
    """
    for phase in settings.phases:
        if phase.num_sequences % num_ranks:
            hint = f"must be a multiple of the {num_ranks} ranks, so that each trains on as much as the others"
            raise SpecError(path="num_sequences", value=phase.num_sequences, hint=hint)


_SHAPE = (
    "vocab_size",
    "num_layers",
    "hidden_size",
    "num_heads",
    "key_value_heads",
    "ffn_hidden_size",
    "gated_mlp",
    "tied_embeddings",
)
_DATA_ORDER = ("seed", "window_tokens")


def refuse_other_run(saved: TrainSettings, wanted: TrainSettings, *, path: str) -> None:
    """Raise ``SpecError`` when the checkpoint at ``path`` has another model or another order of the data."""
    _refuse_other((*_SHAPE, *_DATA_ORDER), saved, wanted, path=path, advice="resume with that, or start afresh")


def refuse_other_model(saved: TrainSettings, wanted: TrainSettings, *, path: str) -> None:
    """Raise ``SpecError`` when the checkpoint at ``path`` has a model of another shape."""
    _refuse_other(_SHAPE, saved, wanted, path=path, advice="train that model, or take another checkpoint.init_from")


def _refuse_other(names: Sequence[str], saved: TrainSettings, wanted: TrainSettings, *, path: str, advice: str) -> None:
    for name in names:
        if getattr(saved, name) != getattr(wanted, name):
            hint = f"checkpoint {path} was trained with {getattr(saved, name)}; {advice}"
            raise SpecError(path=name, value=getattr(wanted, name), hint=hint)
