"""Measures a checkpoint's loss on held-out text, in one process.

``python -m airflow_llmsched.trainers.evaluate --checkpoint DIR --dataset manifest.json --num-batches N --output FILE``.
The same checkpoint, dataset and number of batches give the same result.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from airflow_llmsched.errors import DataError, LlmschedError
from airflow_llmsched.trainers.checkpointing import load_model, quiet_torch
from airflow_llmsched.trainers.data import TokenStream, read_manifest
from airflow_llmsched.trainers.folders import read_state
from airflow_llmsched.trainers.model import ByteGpt
from airflow_llmsched.trainers.settings import TrainSettings

_ORDER_SEED = 0
"""Which held-out windows are read must not depend on how the model was trained, or runs could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean held-out loss in nats per byte, and in bits. ``num_tokens`` is how many it was measured on."""

    loss: float
    bits_per_byte: float
    num_tokens: int
    checkpoint_step: int
    dataset_digest: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate as the command line says. Return 0, or 1 after one line on stderr that says what failed."""
    options = _parser().parse_args(arguments)
    quiet_torch()
    # One thread adds up in one order, however many cores there are; and threads that share cores mostly wait.
    torch.set_num_threads(1)
    try:
        result = evaluate(options.checkpoint, dataset=options.dataset, num_batches=options.num_batches)
        _write(Path(options.output), result)
    except LlmschedError as error:
        sys.stderr.write(f"llmsched evaluate: {error}\n")
        return 1
    return 0


def evaluate(checkpoint: str, *, dataset: str, num_batches: int) -> Evaluation:
    """Return the loss over ``num_batches`` global batches of held-out text, or over all of it if there is less.

    Raises:
        DataError: the checkpoint is damaged or unfinished, or was trained on another dataset, whose training text could
            be this one's held-out text.
    """
    files = read_manifest(dataset)
    model, settings, step = _load(checkpoint, dataset_digest=files.digest)
    phase = settings.phases[-1]
    length = phase.sequence_length_tokens
    stream = TokenStream(files.held_out, window_tokens=length, seed=_ORDER_SEED)
    num_sequences = min(num_batches * phase.num_sequences, stream.num_windows)
    loss_sum = 0.0
    with torch.inference_mode():
        for inputs, targets in _batches(stream, num_sequences, length=length, size=settings.micro_batch_size):
            loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
            loss_sum += loss.item()
    num_tokens = num_sequences * length
    mean = loss_sum / num_tokens
    return Evaluation(
        loss=mean,
        bits_per_byte=mean / math.log(2),
        num_tokens=num_tokens,
        checkpoint_step=step,
        dataset_digest=files.digest,
    )


def _load(checkpoint: str, *, dataset_digest: str) -> tuple[nn.Module, TrainSettings, int]:
    state = read_state(checkpoint)
    if state.dataset_digest != dataset_digest:
        trained, given = state.dataset_digest[:12], dataset_digest[:12]
        message = f"checkpoint {checkpoint} was trained on dataset {trained}, not {given}; evaluate it on its own"
        raise DataError(message)
    settings = TrainSettings.from_plain(state.settings)
    model = ByteGpt(settings)
    load_model(checkpoint, model=model)
    return model.eval(), settings, state.step


def _batches(stream: TokenStream, num_sequences: int, *, length: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, num_sequences, size):
        inputs, targets = stream.read(start * length, min(size, num_sequences - start) * length)
        yield torch.from_numpy(inputs).long().view(-1, length), torch.from_numpy(targets).long().view(-1, length)


def _write(path: Path, result: Evaluation) -> None:
    """Replace ``path``, so that a reader never sees half a result."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(result)) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write the evaluation to {path}: {error.strerror}; make room or permission") from error
    finally:
        temporary.unlink(missing_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow_llmsched.trainers.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory, step-<8 digits>")
    parser.add_argument("--dataset", required=True, help="manifest.json of the staged dataset")
    parser.add_argument("--num-batches", required=True, type=_positive, help="global batches to measure on")
    parser.add_argument("--output", required=True, help="JSON file to write")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
