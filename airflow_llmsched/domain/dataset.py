"""A staged dataset: shards of tokens with their digests. One byte is one token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of tokens; ``path`` is relative to the manifest's folder."""

    path: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """Shards in order, training apart from held out.

    ``digest`` is the sha256 of the two lists of shards: it names the tokens and their order, wherever they lie.
    ``source_digest`` names the text they were packed from and how, to see whether that is still the same.
    """

    root: str
    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]
    source: str
    digest: str
    source_digest: str = ""

    @property
    def num_train_tokens(self) -> int:
        """Tokens to train on."""
        return sum(shard.num_bytes for shard in self.train)

    @property
    def num_held_out_tokens(self) -> int:
        """Tokens kept for evaluation."""
        return sum(shard.num_bytes for shard in self.held_out)
