"""What a user wants trained. ``specs`` builds it from YAML; the layers below read only this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import Offload, PipelineSchedule, PlacementWish, Recompute
from airflow_llmsched.domain.queue import SliceAsk
from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.domain.roles import RoleSpec
from airflow_llmsched.domain.software import Software


class TrainingStage(StrEnum):
    """Which part of a model's life this run is."""

    PRETRAIN = "pretrain"
    CONTINUED = "continued"
    SFT = "sft"
    LORA = "lora"


class LoraTarget(StrEnum):
    """Linear layers that get adapters. Latent attention's projections go with queries, keys and values."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUT = "attention_out"
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    EXPERTS = "experts"
    """All three matrices of each routed expert; ``GATE``, ``UP`` and ``DOWN`` are those of MLPs and shared experts."""
    OUTPUT_HEAD = "output_head"


ALL_LINEAR = tuple(target for target in LoraTarget if target is not LoraTarget.OUTPUT_HEAD)
"""Every matrix of attention, MLPs and experts, as Hugging Face PEFT's "all-linear"."""


class Positions(StrEnum):
    """How positions enter the model; only learned ones have parameters."""

    ROTARY = "rotary"
    LEARNED = "learned"
    ALIBI = "alibi"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """A mixture-of-experts MLP: ``num_routed`` experts of which ``num_active`` serve each token, plus shared ones.

    ``layers`` names the layers that have it, counted from 0; None stands for all after ``num_dense_layers_first``.
    A shared expert is ``shared_hidden_size`` wide (None: like a routed one); with ``shared_gate`` a scalar per token
    weighs it (Qwen-MoE). ``router_bias`` is trained (GPT-OSS); ``correction_bias`` is set by a rule that balances load
    (DeepSeek-V3): it is stored, and has neither gradient nor optimizer state.
    """

    num_routed: int
    num_active: int
    expert_hidden_size: int
    num_shared: int = 0
    num_dense_layers_first: int = 0
    shared_hidden_size: int | None = None
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): keys and values from one latent.

    A head's query and key have the model's ``head_size``, of which ``rope_head_size`` carry the position; that part of
    the key is shared by all heads. ``query_latent_size`` is None for queries projected directly.
    """

    kv_latent_size: int
    rope_head_size: int
    value_head_size: int
    query_latent_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """An encoder of images whose output a projector brings to the model's width. Counts of exact parameters.

    ``num_other_parameters`` are those outside its layers: patch embedding, positions, class token, norms.
    """

    num_layers: int
    hidden_size: int
    num_layer_parameters: int
    num_other_parameters: int
    num_projector_parameters: int

    @property
    def num_parameters(self) -> int:
        """All of the encoder and its projector."""
        return self.num_layers * self.num_layer_parameters + self.num_other_parameters + self.num_projector_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only Transformer. Sizes are element counts; layers are numbered from 0.

    Attention: ``attention_window_tokens`` bounds how far back a token attends (None: to the start), in all layers but
    ``full_attention_layers``. ``cross_attention_layers`` attend to the encoder's output instead of the text (Llama 3.2
    Vision). ``attention_sinks`` adds one trained logit per query head (GPT-OSS). ``latent`` is set for MLA, whose
    ``num_kv_heads`` is ``num_heads``.

    Norms: a block has ``num_norms_per_layer`` (1 where attention and MLP share one, 4 where their outputs have norms
    too). ``norm_has_weight`` is False for norms without parameters (OLMo 1). ``qk_norm`` has one weight per head
    element, shared by all heads, or with ``qk_norm_full_width`` one per element of the whole query and key (OLMo 2).

    ``parallel_block``: attention and MLP read the same input and are added at once (GPT-J). ``max_positions`` is the
    number of rows of a learned table. ``embedding_size`` is the width of a token embedding that two projections bring
    to the hidden size and back (OPT-350m). ``num_predict_ahead_layers`` are further blocks that predict tokens beyond
    the next one in training (multi-token prediction, DeepSeek-V3); published totals leave them out.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_hidden_size: int
    vocab_size: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    positions: Positions = Positions.ROTARY
    max_positions: int = 0
    embedding_size: int | None = None
    num_extra_embedding_rows: int = 0
    norm_has_bias: bool = False
    attention_qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    qk_norm_full_width: bool = False
    qk_norm_has_bias: bool = False
    norm_has_weight: bool = True
    num_norms_per_layer: int = 2
    embedding_norm: bool = False
    final_norm: bool = True
    parallel_block: bool = False
    attention_window_tokens: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    cross_attention_layers: tuple[int, ...] = ()
    attention_sinks: bool = False
    latent: LatentAttention | None = None
    experts: ExpertShape | None = None
    num_predict_ahead_layers: int = 0
    encoder: EncoderShape | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_size

    @property
    def key_size(self) -> int:
        """Width of all key heads together, as attention multiplies them."""
        return self.num_kv_heads * self.head_size

    @property
    def value_head_size(self) -> int:
        """Width of one head's value: the head size, but for latent attention."""
        return self.latent.value_head_size if self.latent else self.head_size

    @property
    def value_size(self) -> int:
        """Width of all value heads together, as attention multiplies them."""
        return self.num_kv_heads * self.value_head_size

    @property
    def context_size(self) -> int:
        """Width of what attention gives its output projection."""
        return self.num_heads * self.value_head_size


class OptimizerKind(StrEnum):
    """Optimizer, which fixes how many state values it keeps per parameter."""

    ADAMW = "adamw"
    SGD_MOMENTUM = "sgd_momentum"
    SGD = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """Optimizer and the format of its state; ``master_weights`` keeps a state-format copy of the parameters.

    ``learning_rate`` is the peak, reached after ``warmup_steps`` steps; None leaves either to the trainer.
    """

    kind: OptimizerKind = OptimizerKind.ADAMW
    state_format: NumberFormat = NumberFormat.FP32
    master_weights: bool = True
    learning_rate: float | None = None
    warmup_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSpec:
    """Formats of matrix operands, stored parameters and gradients."""

    compute: NumberFormat = NumberFormat.BF16
    parameters: NumberFormat = NumberFormat.BF16
    gradients: NumberFormat = NumberFormat.FP32


class CompressionKind(StrEnum):
    """How gradients are made smaller before replicas exchange them."""

    TOP_K = "top_k"
    """Only the largest values are sent, the rest is added up for later: deep gradient compression (Lin et al. 2018)."""
    POWER_SGD = "power_sgd"
    """Each matrix as a product of two thin ones (Vogels et al. 2019)."""
    EIGHT_BIT = "8bit"
    """Values of 8 bits with a scale (PyTorch's quantization hook)."""
    ONE_BIT = "1bit"
    """Signs of the momentum with a scale, once its variance is frozen: 1-bit Adam (Tang et al. 2021)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCompression:
    """Lossy compression of what replicas exchange: asked for by the user, never chosen by the planner.

    ``kept_ratio`` is the share of values that ``TOP_K`` sends, ``rank`` the width of ``POWER_SGD``'s thin matrices.
    The first ``num_exact_steps`` steps are exchanged whole.
    """

    kind: CompressionKind
    kept_ratio: float = 0.001
    rank: int = 4
    num_exact_steps: int = 1000


class DatasetKind(StrEnum):
    """Where the training text comes from."""

    PYTHON_STDLIB = "python_stdlib"
    """The source of the running Python's standard library: real text that every machine has."""
    FILES = "files"
    """Files below ``source``, read as bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """What to stage. ``held_out_ratio`` of the bytes goes to evaluation and is never trained on."""

    kind: DatasetKind
    source: str | None = None
    shard_bytes: int = 4 * 1024**2
    held_out_ratio: float = 0.05
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPhase:
    """Batch and sequence length from ``from_tokens`` seen onwards."""

    from_tokens: int
    sequence_length_tokens: int
    num_sequences: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length_tokens * self.num_sequences


class OnOverrun(StrEnum):
    """What is wanted when a budget is projected not to last."""

    STOP = "stop"
    """Save and stop: what is left of the budget buys nothing that ends in time."""
    ASK = "ask"
    """Go on, and ask somebody who may raise the cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """When to stop: exactly one of ``num_tokens`` and ``num_steps``; ``deadline_s`` counts from the start.

    ``on_overrun`` is what happens when ``max_usd`` is projected not to last.
    """

    num_tokens: int | None = None
    num_steps: int | None = None
    deadline_s: float | None = None
    max_usd: float | None = None
    on_overrun: OnOverrun = OnOverrun.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveWeights:
    """Relative weights, all >= 0 and not all zero."""

    throughput: float = 1.0
    cost: float = 0.0
    latency: float = 0.0
    fairness: float = 0.0
    reliability: float = 0.0
    energy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismWish:
    """Pinned degrees; None leaves the choice to the planner.

    With ``may_offload`` it tries to offload where nothing fits otherwise and ``offload`` is not pinned.
    """

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero_stage: int | None = None
    micro_batch_size: int | None = None
    recompute: Recompute | None = None
    vp: int | None = None
    expert_tp: int | None = None
    schedule: PipelineSchedule | None = None
    offload: Offload | None = None
    shard_size: int | None = None
    may_offload: bool = False


class CapacityType(StrEnum):
    """How a node is rented."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityWish:
    """Where capacity may come from. Empty tuples allow any; every entry is a filter, never a cost."""

    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    jurisdictions: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    capacity_types: tuple[CapacityType, ...] = ()
    min_ranks: int = 1
    max_ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """Where and how often to save. ``interval_steps`` or ``interval_s`` or, with neither, once at the end.

    ``init_from`` is the checkpoint whose weights every stage but ``PRETRAIN`` starts with, at its own step 0.
    ``separate_paths``: the trainer loads from one path and saves to another, so each attempt saves in its own folder.
    """

    root: str | None = None
    init_from: str | None = None
    format: str = "dcp"
    interval_steps: int | None = None
    interval_s: float | None = None
    keep_last: int = 3
    require_resume: bool = False
    separate_paths: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSpec:
    """How ranks start. ``command`` is an argument list; empty means the shipped byte-level trainer."""

    kind: Launcher = Launcher.TORCHRUN
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_limit_s: float = 120.0
    grace_s: float = 10.0
    hang_limit_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec:
    """Held-out evaluation and its gate: the run fails when the loss is above ``max_loss`` (None: no gate).

    It runs on one accelerator, or on a slice of one that is divided (``slices``).
    """

    command: tuple[str, ...] = ()
    max_loss: float | None = None
    num_batches: int = 16
    limit_s: float = 3600.0
    slices: SliceAsk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySpec:
    """Relaunches allowed by failure class (preemption spends none), and launches in a row without a new checkpoint."""

    max_code_failures: int = 1
    max_infrastructure_failures: int = 5
    max_attempts_without_progress: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficDemand:
    """Bytes that each member of a group of ``group_size`` ranks moves per step in one collective.

    With ``peer_group`` the traffic leaves ``group`` for that other group (for instance trainers to parameter servers).
    """

    group: str
    group_size: int
    collective: str
    bytes_per_step: int
    peer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDemand:
    """Bytes per rank in one memory tier (``hbm``, ``host``, ``nvme``)."""

    tier: str
    bytes_per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """One training run. ``model`` is None only for a job that states its own ``communication`` and ``memory``.

    ``freezes_encoder``: an encoder of images keeps the weights that it comes with. ``queue``: it waits its turn.
    """

    name: str
    stage: TrainingStage
    model: ModelShape | None
    data: DatasetSpec
    batch: tuple[BatchPhase, ...]
    budget: BudgetSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    precision: PrecisionSpec = PrecisionSpec()
    objective: ObjectiveWeights = ObjectiveWeights()
    parallelism: ParallelismWish = ParallelismWish()
    placement: tuple[PlacementWish, ...] = ()
    roles: tuple[RoleSpec, ...] = ()
    capacity: CapacityWish = CapacityWish()
    checkpoint: CheckpointSpec = CheckpointSpec()
    launcher: LauncherSpec = LauncherSpec()
    evaluation: EvaluationSpec | None = None
    retries: RetrySpec = RetrySpec()
    queue: QueueWish | None = None
    communication: tuple[TrafficDemand, ...] = ()
    memory: tuple[MemoryDemand, ...] = ()
    lora_rank: int | None = None
    lora_targets: tuple[LoraTarget, ...] = ALL_LINEAR
    freezes_encoder: bool = False
    compression: GradientCompression | None = None
    software: Software = field(default_factory=Software)
    seed: int = 0

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run; see :func:`count_steps`."""
        return count_steps(self.batch, self.budget)


def count_steps(batch: Sequence[BatchPhase], budget: BudgetSpec) -> int:
    """Return how many optimizer steps ``budget`` buys: as given, or the fewest that reach its tokens."""
    return budget.num_steps if budget.num_steps is not None else sum(count_phase_steps(batch, budget))


def count_phase_steps(batch: Sequence[BatchPhase], budget: BudgetSpec) -> tuple[int, ...]:
    """Return how many of the budget's optimizer steps belong to each phase, in the phases' order."""
    steps: list[int] = []
    seen = 0
    for phase, following in zip_longest(batch, batch[1:]):
        left = None if budget.num_steps is None else budget.num_steps - sum(steps)
        ends = [end for end in (budget.num_tokens, following.from_tokens if following else None) if end is not None]
        # a step that began in the phase before may have gone beyond this one's beginning, or its end
        fewest = max(0, -(-(min(ends) - seen) // phase.tokens_per_step)) if ends else left or 0
        steps.append(fewest if left is None else min(fewest, left))
        seen += steps[-1] * phase.tokens_per_step
    return tuple(steps)
