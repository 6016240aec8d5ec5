"""What a trainer's software does that no layout says, and that changes how long a step takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Habits of a training stack. The defaults are those of a trainer of 2024 with nothing tuned by hand.

    Attributes:
        fused_attention: attention never writes its scores to memory (Dao et al. 2022).
        fused_elementwise: a compiler or hand-written kernels join norms, activations and residual additions.
        recorded_launches: kernels start from recorded graphs, so that launching costs next to nothing.
        overlaps_data_parallel: gradients are reduced, and sharded weights gathered, beside computation.
        overlaps_tensor_parallel: tensor-parallel collectives run in pieces beside the products that they feed.
        overlaps_expert_parallel: tokens travel to their experts beside the computation of another micro-batch.
    """

    fused_attention: bool = True
    fused_elementwise: bool = False
    recorded_launches: bool = False
    overlaps_data_parallel: bool = True
    overlaps_tensor_parallel: bool = False
    overlaps_expert_parallel: bool = False
