"""Reads a staged dataset in an order that depends on the seed alone, never on ranks, attempts or batch size.

The text is cut into windows of equal length. Each epoch visits every window once, in the order of a keyed permutation
that is computed, not stored. Laid end to end in that order the windows form one endless stream of tokens, and a step
takes the next stretch of it. Where training stands is therefore one number, the tokens seen, and any number of ranks
that goes on from it neither repeats nor misses a token.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airflow_llmsched.errors import DataError

Tokens = NDArray[np.uint8]

_NUM_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFiles:
    """Paths of a manifest's shards, and the digest that names their content."""

    train: tuple[Path, ...]
    held_out: tuple[Path, ...]
    digest: str


def read_manifest(path: str) -> TokenFiles:
    """Read where a staged dataset's shards lie. They were verified when staged; here only absence and size are seen.

    Raises:
        DataError: the manifest cannot be read, or a shard is missing or has another size than it says.
    """
    try:
        plain = json.loads(Path(path).read_bytes())
        folder = Path(path).parent
        splits = {
            name: tuple(_existing(folder / shard["path"], shard["num_bytes"]) for shard in plain[name])
            for name in ("train", "held_out")
        }
        return TokenFiles(digest=plain["digest"], **splits)
    except OSError as error:
        raise DataError(f"cannot read the dataset manifest {path}: {error.strerror}; stage the dataset again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no dataset manifest ({error!r}); stage the dataset again") from None


def _existing(path: Path, num_bytes: int) -> Path:
    if not path.is_file():
        raise DataError(f"shard {path} is missing; stage the dataset again")
    found_bytes = path.stat().st_size
    if found_bytes != num_bytes:
        raise DataError(f"shard {path} has {found_bytes} bytes, its manifest says {num_bytes}; stage the dataset again")
    return path


class TokenStream:
    """The endless, shuffled stream of one split's tokens, read by mapping its files: nothing is held in memory."""

    def __init__(self, paths: tuple[Path, ...], *, window_tokens: int, seed: int) -> None:
        # An empty file cannot be mapped, and has nothing to give.
        self._shards = [np.memmap(path, dtype=np.uint8, mode="r") for path in paths if path.stat().st_size]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._window_tokens = window_tokens
        self._seed = seed
        num_tokens = int(self._starts[-1])
        self.num_windows = (num_tokens - 1) // window_tokens
        """Windows of one epoch. The last token only ever serves as a target."""
        if self.num_windows < 1:
            where = paths[0].parent if paths else "the dataset"
            raise DataError(f"{where} has {num_tokens} tokens, fewer than one window of {window_tokens} and its target")

    def read(self, start: int, num_tokens: int) -> tuple[Tokens, Tokens]:
        """Return inputs and their targets (the tokens that follow them in the text) from stream position ``start``."""
        inputs, targets = [], []
        position, end = start, start + num_tokens
        while position < end:
            text_start, room = self._locate(position)
            length = min(room, end - position)
            piece = self._text(text_start, length + 1)
            inputs.append(piece[:-1])
            targets.append(piece[1:])
            position += length
        return np.concatenate(inputs), np.concatenate(targets)

    def _locate(self, position: int) -> tuple[int, int]:
        """Return where stream ``position`` lies in the text, and how many tokens of its window are left there."""
        index, offset = divmod(position, self._window_tokens)
        epoch, index = divmod(index, self.num_windows)
        window = permute(index, size=self.num_windows, key=f"{self._seed}/{epoch}")
        return window * self._window_tokens + offset, self._window_tokens - offset

    def _text(self, start: int, length: int) -> Tokens:
        """Copy text that may run over the borders of shards."""
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        while length > 0:
            offset = start - int(self._starts[shard])
            piece = np.asarray(self._shards[shard][offset : offset + length])
            pieces.append(piece)
            start, length, shard = start + len(piece), length - len(piece), shard + 1
        return np.concatenate(pieces)


def permute(index: int, *, size: int, key: str) -> int:
    """Return where ``index`` goes in a permutation of ``range(size)`` that ``key`` chooses.

    A Feistel network over the smallest even number of bits that holds ``size``, walked until it lands inside (Black and
    Rogaway, 2002). At most three quarters of its numbers lie outside, so a walk takes four turns on average at worst.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for turn in range(_NUM_ROUNDS):
            left, right = right, left ^ (_mix(right, turn, key) & mask)
        index = left << half_bits | right
        if index < size:
            return index


def _mix(value: int, turn: int, key: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}/{turn}/{value}".encode(), digest_size=8).digest(), "little")
