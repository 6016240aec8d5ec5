"""Keys of ``software``: what the trainer's software does. Defaults are the domain's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_llmsched.domain.software import Software
from airflow_llmsched.specs import fields as f
from airflow_llmsched.specs.block import Block

_SOFTWARE = Software()


class SoftwareBlock(Block):
    """What the trainer's software does, which no layout says and which changes a step's time or its memory.

    The defaults are those of a trainer of 2024 with nothing tuned by hand. Nothing is switched on by this but what a
    written-out plan can set; it says what plans are to reckon with.
    """

    fused_attention: bool = Field(_SOFTWARE.fused_attention, description="Attention never writes its scores to memory.")
    attention_kernel: f.AttentionKernelName = Field(
        _SOFTWARE.attention_kernel,
        description="Which fused kernel: FlashAttention 1 or 2, or one written for the device.",
    )
    num_heads_per_softmax: f.Count = Field(
        _SOFTWARE.num_heads_per_softmax,
        description="Without fused attention: the fused softmax serves numbers of heads on a rank that this divides.",
    )
    fused_elementwise: bool = Field(
        _SOFTWARE.fused_elementwise,
        description="A compiler or kernels by hand join norms, activations and residual additions.",
    )
    fused_accumulation: bool = Field(
        _SOFTWARE.fused_accumulation, description="Weight gradients are added up in the products' own kernels."
    )
    recorded_launches: bool = Field(
        _SOFTWARE.recorded_launches, description="Kernels start from recorded graphs (CUDA graphs)."
    )
    overlaps_data_parallel: bool = Field(
        _SOFTWARE.overlaps_data_parallel, description="Gradients and sharded weights travel beside computation."
    )
    overlaps_tensor_parallel: bool = Field(
        _SOFTWARE.overlaps_tensor_parallel,
        description="Tensor-parallel collectives run in pieces beside the products that they feed.",
    )
    overlaps_expert_parallel: bool = Field(
        _SOFTWARE.overlaps_expert_parallel,
        description="Tokens travel to their experts beside the computation of another micro-batch.",
    )
    balances_stages: bool = Field(
        _SOFTWARE.balances_stages, description="Layers are dealt to pipeline stages by their cost, not by number."
    )
    deduplicates_dispatch: bool = Field(
        _SOFTWARE.deduplicates_dispatch,
        description="A token goes once to each node that has experts for it (DeepEP), not once to each expert.",
    )
    has_dropout: bool = Field(_SOFTWARE.has_dropout, description="Attention and residual branches have dropout.")
    loss: f.LossKernelName = Field(
        _SOFTWARE.loss,
        description="How the loss is computed: with FP32 copies of the logits (eager), one of them (vocab_parallel), "
        "or none (fused).",
    )
    keeps_gathered_weights: bool = Field(
        _SOFTWARE.keeps_gathered_weights,
        description="Under ZeRO 3, weights stay gathered for a whole step (FSDP in a pipeline).",
    )
    has_sharding_buffers: bool = Field(
        _SOFTWARE.has_sharding_buffers,
        description="Under ZeRO 3, what is gathered has a buffer of its own; false where a compiler plans memory.",
    )
    regathers_inputs: bool = Field(
        _SOFTWARE.regathers_inputs,
        description="Where the sequence is split, the backward pass gathers inputs again (Megatron-LM).",
    )
    keeps_narrow_inputs: bool = Field(
        _SOFTWARE.keeps_narrow_inputs, description="Inputs of FP8 products are kept in FP8, not in 16 bits."
    )
    expandable_segments: bool = Field(
        _SOFTWARE.expandable_segments,
        description="The allocator maps pages. With true, launches set what switches it on in PyTorch.",
    )
    prefetches_input: bool = Field(
        _SOFTWARE.prefetches_input, description="Input of a step is read while the one before it computes."
    )
    binds_processes: bool = Field(
        _SOFTWARE.binds_processes, description="Ranks and loaders run on the processor next to their accelerator."
    )
    expert_load_ratio: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = Field(
        _SOFTWARE.expert_load_ratio,
        description="Tokens of the fullest rank's experts, as a multiple of the average; where tokens are dropped, the "
        "capacity factor.",
    )
