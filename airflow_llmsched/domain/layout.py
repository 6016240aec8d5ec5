"""How a model is split over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Degrees of parallelism. Expert parallelism divides data parallelism, so it does not multiply the world size."""

    dp: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero_stage: int = 0
    micro_batch_size: int = 1
    num_micro_batches: int = 1
    recompute: Recompute = Recompute.NONE

    @property
    def world_size(self) -> int:
        """Ranks in the gang: dp * tp * pp * cp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.dp * self.micro_batch_size * self.num_micro_batches

    def describe(self) -> str:
        """Short form for tables and messages, degrees of one left out."""
        degrees = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        shown = [f"{name}={degree}" for name, degree in degrees.items() if degree > 1 or name == "dp"]
        shown += [f"zero={self.zero_stage}", f"micro={self.micro_batch_size}x{self.num_micro_batches}"]
        return " ".join(shown)
