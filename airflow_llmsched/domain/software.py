"""What a trainer's software does that no layout says, and that changes a step's time or its memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LossKernel(StrEnum):
    """How the loss is computed from the logits, which decides how many copies of them are in memory at once."""

    EAGER = "eager"
    """Logits are cast to FP32, and the softmax and both gradients are tensors of their own (PyTorch, not compiled)."""
    VOCAB_PARALLEL = "vocab_parallel"
    """The FP32 logits become softmax and then gradient in place (Megatron-LM's vocabulary-parallel cross entropy)."""
    FUSED = "fused"
    """One kernel reads the logits and writes their gradient, both in the format of the products."""


class AttentionKernel(StrEnum):
    """Which fused kernel computes attention: how much of the device it can use depends on what it was written for."""

    FLASH_1 = "flash_1"
    """FlashAttention and its Triton version of 2022 (Dao et al. 2022)."""
    FLASH_2 = "flash_2"
    """FlashAttention-2 (Dao 2023), as PyTorch's own attention has it: written for A100."""
    CURRENT = "current"
    """One written for the device: FlashAttention-3, cuDNN's, a TPU's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Habits of a training stack. The defaults are those of a trainer of 2024 with nothing tuned by hand.

    Attributes:
        fused_attention: attention never writes its scores to memory (Dao et al. 2022).
        attention_kernel: which fused kernel that is.
        num_heads_per_softmax: without fused attention, the kernel that joins mask and softmax serves only numbers of
            heads (of all sequences on a rank) that this divides; others take plain operators.
        fused_elementwise: a compiler or hand-written kernels join norms, activations and residual additions.
        fused_accumulation: weight gradients of micro-batches are added up in the products' own kernels.
        recorded_launches: kernels start from recorded graphs, so that launching costs next to nothing.
        overlaps_data_parallel: gradients are reduced, and sharded weights gathered, beside computation.
        overlaps_tensor_parallel: tensor-parallel collectives run in pieces beside the products that they feed.
        overlaps_expert_parallel: tokens travel to their experts beside the computation of another micro-batch.
        balances_stages: layers are dealt to pipeline stages by their cost, embedding, head and blocks of multi-token
            prediction counted (Megatron-Core's pipeline_model_parallel_layout), instead of by number.
        deduplicates_dispatch: a token goes once to each node (or domain) that has experts for it, and is copied there
            (DeepEP and the like), instead of once to each expert.
        has_dropout: attention and residual branches have dropout, whose masks are kept.
        loss: how the loss is computed.
        keeps_gathered_weights: under ZeRO 3, weights stay gathered, and gradients whole, from the first micro-batch of
            a step to the last (FSDP in a pipeline).
        has_sharding_buffers: under ZeRO 3, what is gathered or reduced has a buffer beside the tensors that it fills,
            and embedding and head stay gathered through a step (PyTorch's FSDP); a compiler that plans memory ahead
            needs neither.
        regathers_inputs: where the sequence is split, the backward pass gathers inputs of products again (Megatron-LM)
            instead of finding them kept whole (PyTorch's DTensor).
        keeps_narrow_inputs: inputs of FP8 products are kept in FP8 (Transformer Engine) and not in 16 bits.
        expandable_segments: the allocator maps pages instead of fixed segments, so that freed ones fit any tensor.
        prefetches_input: input of a step is read while the one before it computes.
        binds_processes: ranks and loaders run on the processor, and use the memory, next to their accelerator.
        expert_load_ratio: tokens of the fullest rank's experts, as a multiple of the average; where tokens are dropped,
            the capacity factor.
    """

    fused_attention: bool = True
    attention_kernel: AttentionKernel = AttentionKernel.CURRENT
    num_heads_per_softmax: int = 1
    fused_elementwise: bool = False
    fused_accumulation: bool = False
    recorded_launches: bool = False
    overlaps_data_parallel: bool = True
    overlaps_tensor_parallel: bool = False
    overlaps_expert_parallel: bool = False
    balances_stages: bool = False
    deduplicates_dispatch: bool = False
    has_dropout: bool = False
    loss: LossKernel = LossKernel.VOCAB_PARALLEL
    keeps_gathered_weights: bool = False
    has_sharding_buffers: bool = True
    regathers_inputs: bool = True
    keeps_narrow_inputs: bool = True
    expandable_segments: bool = True
    prefetches_input: bool = True
    binds_processes: bool = True
    expert_load_ratio: float = 1.1
