"""Keys of a workload spec: names, types, defaults and meaning, one class a block. ``rules``: what holds between them.

Defaults are the domain's own, so that a spec and a ``WorkloadSpec`` made in code mean the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_llmsched.domain.layout import MAX_ZERO_STAGE
from airflow_llmsched.domain.queue_rules import DEFAULT_PRIORITY, DEFAULT_TEAM
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.workload import (
    ALL_LINEAR,
    CapacityWish,
    CheckpointSpec,
    CompressionKind,
    DatasetKind,
    DatasetSpec,
    EvaluationSpec,
    GradientCompression,
    LauncherSpec,
    OnOverrun,
    OptimizerSpec,
    Positions,
    PrecisionSpec,
    RetrySpec,
    TrainingStage,
)
from airflow_llmsched.specs import fields as f
from airflow_llmsched.specs.block import Block
from airflow_llmsched.specs.software_schema import SoftwareBlock

_COMPRESSION = GradientCompression(kind=CompressionKind.POWER_SGD)
_DATA = DatasetSpec(kind=DatasetKind.PYTHON_STDLIB)
_OPTIMIZER = OptimizerSpec()
_PRECISION = PrecisionSpec()
_CAPACITY = CapacityWish()
_CHECKPOINT = CheckpointSpec()
_LAUNCHER = LauncherSpec()
_EVALUATION = EvaluationSpec()
_RETRIES = RetrySpec()
_ROLE = RoleSpec(kind=RoleKind.TRAINER)


class ExpertsBlock(Block):
    """A mixture-of-experts MLP in place of the dense one."""

    num_routed: f.Count = Field(description="Experts to choose from, per layer.")
    num_active: f.Count = Field(description="Routed experts that serve each token.")
    expert_hidden_size: f.Count = Field(description="Inner width of one expert.")
    num_shared: f.CountOrZero = Field(0, description="Experts that serve every token, besides the routed ones.")
    num_dense_layers_first: f.CountOrZero = Field(0, description="First layers that keep the dense MLP.")
    shared_hidden_size: f.Count | None = Field(
        None, description="Inner width of one shared expert. Default: expert_hidden_size."
    )
    shared_gate: bool = Field(False, description="Whether a scalar per token weighs the shared experts.")
    router_bias: bool = Field(False, description="Trained bias of the router.")
    correction_bias: bool = Field(False, description="Bias of the router that a rule sets to balance load.")
    layers: list[f.CountOrZero] | None = Field(
        None, description="Layers with experts, from 0. Default: all but the first num_dense_layers_first."
    )


class LatentBlock(Block):
    """Multi-head latent attention: keys and values from one latent. head_size is the query's, position included."""

    kv_latent_size: f.Count = Field(description="Width of the latent of keys and values.")
    rope_head_size: f.Count = Field(description="Part of head_size that carries the position.")
    value_head_size: f.Count = Field(description="Width of one head's value.")
    query_latent_size: f.Count | None = Field(None, description="Width of the queries' latent. Default: none.")


class EncoderBlock(Block):
    """An encoder of images and its projector, by numbers of parameters."""

    num_layers: f.Count = Field(description="Layers of the encoder.")
    hidden_size: f.Count = Field(description="Width of the encoder.")
    num_layer_parameters: f.Count = Field(description="Parameters of one layer.")
    num_other_parameters: f.CountOrZero = Field(0, description="Parameters outside the layers: patches, positions.")
    num_projector_parameters: f.CountOrZero = Field(0, description="Parameters between encoder and model.")


class ShapeBlock(Block):
    """An explicit decoder-only Transformer. Sizes are element counts."""

    num_layers: f.LayerCount = Field(description="Transformer layers.")
    hidden_size: f.Count = Field(description="Width of the residual stream.")
    num_heads: f.Count = Field(description="Query heads.")
    num_kv_heads: f.Count | None = Field(None, description="Key and value heads. Default: as many as query heads.")
    head_size: f.Count | None = Field(None, description="Width of one head. Default: hidden_size / num_heads.")
    ffn_hidden_size: f.Count | None = Field(None, description="Inner width of the dense MLP. Default: 4 * hidden_size.")
    vocab_size: f.Count = Field(description="Rows of the embedding table.")
    gated_mlp: bool = Field(True, description="Whether the MLP has a gate (three matrices) or not (two).")
    tied_embeddings: bool = Field(False, description="Whether input and output embeddings are one table.")
    positions: f.PositionsName = Field(
        Positions.ROTARY, description="How positions enter; learned ones are parameters."
    )
    max_positions: f.CountOrZero = Field(0, description="Rows of the table of learned positions.")
    embedding_size: f.Count | None = Field(
        None, description="Width of token embeddings, where projections bring them to hidden_size. Default: that."
    )
    num_extra_embedding_rows: f.CountOrZero = Field(0, description="Rows that only the input embedding has.")
    norm_has_bias: bool = Field(False, description="LayerNorm (weight and bias) rather than RMSNorm (weight).")
    norm_has_weight: bool = Field(True, description="False for norms without parameters.")
    num_norms_per_layer: f.NormCount = Field(
        2, description="1 if attention and MLP share one, 4 with norms after them."
    )
    embedding_norm: bool = Field(False, description="A norm right after the embedding.")
    final_norm: bool = Field(True, description="A norm before the output head.")
    parallel_block: bool = Field(False, description="Attention and MLP read the same input.")
    attention_qkv_bias: bool = Field(False, description="Biases on the query, key and value projections.")
    attention_out_bias: bool = Field(False, description="Bias on the attention's output projection.")
    mlp_bias: bool = Field(False, description="Biases in the MLP and in experts.")
    head_bias: bool = Field(False, description="Bias of the output head.")
    qk_norm: bool = Field(False, description="Norms on queries and keys.")
    qk_norm_full_width: bool = Field(False, description="Those norms span all heads, not one.")
    qk_norm_has_bias: bool = Field(False, description="Those norms have a bias.")
    attention_window_tokens: f.Count | None = Field(
        None, description="How far back a token attends. Default: to the start."
    )
    full_attention_layers: list[f.CountOrZero] = Field([], description="Layers, from 0, without that window.")
    cross_attention_layers: list[f.CountOrZero] = Field([], description="Layers, from 0, that attend to the encoder.")
    attention_sinks: bool = Field(False, description="A trained logit per head that takes attention from the text.")
    latent: LatentBlock | None = Field(None, description="Multi-head latent attention.")
    experts: ExpertsBlock | None = Field(None, description="Mixture of experts.")
    num_predict_ahead_layers: f.CountOrZero = Field(0, description="Further blocks of multi-token prediction.")
    encoder: EncoderBlock | None = Field(None, description="Encoder of images.")


class ModelBlock(Block):
    """What is trained: exactly one of ``preset``, ``hf_config`` and ``shape``. A bare word is a preset."""

    preset: f.Word | None = Field(None, description="A shipped model, by name.")
    hf_config: f.LocalPath | None = Field(
        None, description="Path of a config.json (Hugging Face) or params.json (Mistral, Meta), from the spec's folder."
    )
    shape: ShapeBlock | None = Field(None, description="An explicit shape.")
    name: f.Label | None = Field(None, description="Label of the model. Default: the preset's or folder's name.")
    freeze_encoder: bool = Field(False, description="The encoder of images keeps its weights, and has no gradients.")


class OptimizerBlock(Block):
    """Optimizer and the format of its state."""

    kind: f.OptimizerName = Field(_OPTIMIZER.kind, description="Fixes how many state values a parameter has.")
    state_format: f.Format = Field(_OPTIMIZER.state_format, description="Format of the state values.")
    master_weights: bool = Field(
        _OPTIMIZER.master_weights, description="Keep a copy of the parameters in state_format."
    )
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Peak learning rate. Default: the trainer's own."
    )
    warmup_steps: f.CountOrZero | None = Field(
        None, description="Steps in which the learning rate rises to its peak. Default: the trainer's own."
    )


class PrecisionBlock(Block):
    """Number formats."""

    compute: f.Format = Field(_PRECISION.compute, description="Operands of matrix products.")
    parameters: f.Format = Field(_PRECISION.parameters, description="Stored parameters.")
    gradients: f.Format = Field(_PRECISION.gradients, description="Gradients as they are reduced.")


class DataBlock(Block):
    """What to stage and train on."""

    kind: f.DatasetName = Field(
        description="python_stdlib: the source of Python's standard library. files: files below source."
    )
    source: f.LocalPath | None = Field(None, description="Folder of the files, from the spec's folder.")
    shard_size: f.Bytes = Field(_DATA.shard_bytes, description="Size of one staged shard.")
    held_out: f.Ratio = Field(_DATA.held_out_ratio, description="Share kept for evaluation and never trained on.")
    max_size: f.Bytes | None = Field(None, description="Take no more than this. Default: everything.")


class PhaseBlock(Block):
    """From ``from`` tokens on. What a phase leaves out stays as in the phase before it."""

    from_: f.TokensSeen = Field(alias="from", description="Tokens seen when the phase begins; the first is 0.")
    sequence_length: f.SequenceLength | None = Field(None, description="Tokens of one sequence.")
    global_batch: f.BatchSize | None = Field(None, description="Size of one optimizer step.")


class BatchBlock(Block):
    """Sequence length and global batch, fixed or by tokens seen."""

    sequence_length: f.SequenceLength | None = Field(None, description="Tokens of one sequence.")
    global_batch: f.BatchSize | None = Field(None, description="Size of one optimizer step, in sequences or in tokens.")
    schedule: list[PhaseBlock] = Field([], description="Phases by tokens seen, in order, the first from 0.")


class BudgetBlock(Block):
    """When to stop: exactly one of ``tokens`` and ``steps``, and limits."""

    tokens: f.Tokens | None = Field(None, description="Tokens to train on.")
    steps: Annotated[int, Field(gt=0, lt=2**53)] | None = Field(None, description="Optimizer steps to take.")
    deadline: f.Duration | None = Field(None, description="Time from the run's start after which it is stopped.")
    max_usd: f.Usd | None = Field(None, description="The most that may be spent.")
    on_overrun: f.OverrunName = Field(
        OnOverrun.STOP,
        description="What happens while it runs when max_usd is projected not to last: it saves and stops, or goes on "
        "and asks.",
    )


class ObjectiveBlock(Block):
    """Relative weights of what a plan is chosen by. A bare word puts all weight on it; what is not named weighs 0."""

    throughput: f.Weight = Field(0.0, description="Tokens per second.")
    cost: f.Weight = Field(0.0, description="Dollars.")
    latency: f.Weight = Field(0.0, description="Time until the run is done, waiting included.")
    fairness: f.Weight = Field(0.0, description="Room left for others.")
    reliability: f.Weight = Field(0.0, description="Work not lost to faults and preemption.")
    energy: f.Weight = Field(0.0, description="Joules.")


class ParallelismBlock(Block):
    """Pinned degrees; what is left out the planner chooses. The word ``auto`` leaves out everything."""

    dp: f.Count | None = Field(None, description="Data-parallel degree.")
    tp: f.Count | None = Field(None, description="Tensor-parallel degree; divides the heads.")
    pp: f.Count | None = Field(None, description="Pipeline degree; at most the layers.")
    cp: f.Count | None = Field(None, description="Context-parallel degree; divides the sequence length.")
    ep: f.Count | None = Field(None, description="Expert-parallel degree; divides the experts.")
    zero_stage: Annotated[int, Field(ge=0, le=MAX_ZERO_STAGE)] | None = Field(
        None, description="0 replicates; 1 shards optimizer state, 2 gradients too, 3 parameters too."
    )
    micro_batch_size: f.Count | None = Field(None, description="Sequences of one forward pass on one rank.")
    recompute: f.RecomputeName | None = Field(None, description="Activations computed again in the backward pass.")
    vp: f.Count | None = Field(None, description="Chunks of layers on each pipeline stage; above 1 they interleave.")
    expert_tp: f.Count | None = Field(None, description="Ranks that split each routed expert; as a rule 1 or tp.")
    schedule: f.ScheduleName | None = Field(None, description="Order of the pipeline's passes.")
    offload: f.OffloadName | None = Field(
        None, description="What leaves the accelerator's memory. Left out: nothing, but see may_offload."
    )
    shard_size: f.Count | None = Field(
        None, description="Replicas (of dp * cp) that ZeRO shards over, the rest being copies, as in HSDP."
    )
    may_offload: bool = Field(
        False, description="Where nothing fits otherwise, try each offload. Let the trainer be one that can."
    )


class LevelWishBlock(Block):
    """Topology levels (names of the engine's tree, such as zone, block, rack, node) to stay inside of."""

    required: f.Word | None = Field(None, description="Never spread over two domains of this level.")
    preferred: f.Word | None = Field(None, description="Spread over two domains of this level only at a cost.")


class PlacementBlock(Block):
    """Placement wishes by group of ranks."""

    gang: LevelWishBlock | None = Field(None, description="All ranks.")
    tp: LevelWishBlock | None = Field(None, description="Each tensor-parallel group.")
    pp: LevelWishBlock | None = Field(None, description="Each pipeline.")
    cp: LevelWishBlock | None = Field(None, description="Each context-parallel group.")
    ep: LevelWishBlock | None = Field(None, description="Each expert-parallel group.")
    dp: LevelWishBlock | None = Field(None, description="Each data-parallel group.")


class RoleBlock(Block):
    """One role of the gang: all roles start or none does, and the gang is done when its trainers are.

    Loaders, evaluators and parameter servers are then ended; one that fails before fails the gang.
    """

    kind: f.RoleName = Field(description="What its processes do.")
    num_ranks: f.Count | None = Field(None, description="Processes. Left out for the trainer: the layout says.")
    command: list[f.Argument] = Field(
        [], description="Argument list; never seen by a shell. The trainer's is the launcher's."
    )
    accelerators_per_rank: f.CountOrZero = Field(
        _ROLE.accelerators_per_rank,
        description="Accelerators each process needs, all on one node. With 0 it is on a node of the trainers.",
    )


class CapacityBlock(Block):
    """Where capacity may come from. An empty list allows anything."""

    clouds: list[f.Word] = Field([], description="Clouds or clusters.")
    regions: list[f.Word] = Field([], description="Regions.")
    jurisdictions: list[f.Word] = Field([], description="Jurisdictions the nodes must stand in.")
    vendors: list[f.Word] = Field([], description="Makers of accelerators.")
    capacity_types: list[f.Market] = Field([], description="Ways of renting.")
    min_ranks: f.Count = Field(_CAPACITY.min_ranks, description="Fewest trainer ranks to run on.")
    max_ranks: f.Count | None = Field(None, description="Most trainer ranks to run on. Default: no limit.")


class CheckpointBlock(Block):
    """Where and how often to save; with neither interval, once at the end."""

    root: f.LocalPath | None = Field(
        None, description="Folder or URI, from the spec's folder. Default: below the state root."
    )
    init_from: f.LocalPath | None = Field(
        None,
        description="Checkpoint, from the spec's folder, whose weights the run starts with. "
        "Required by the stages continued, sft and lora, refused for pretrain.",
    )
    format: f.Word = Field(_CHECKPOINT.format, description="Layout on storage; a registered checkpoint format.")
    interval_steps: f.Count | None = Field(None, description="Steps between saves.")
    interval: f.Duration | None = Field(None, description="Time between saves.")
    keep_last: f.Count = Field(_CHECKPOINT.keep_last, description="Complete checkpoints to keep.")
    require_resume: bool = Field(_CHECKPOINT.require_resume, description="Fail rather than start from step 0.")
    separate_paths: bool = Field(
        _CHECKPOINT.separate_paths,
        description="Each attempt saves in a folder of its own, and resumes from whichever it is told. "
        "Set it to false for a trainer that has one path for both.",
    )


class LauncherBlock(Block):
    """How ranks start and end."""

    kind: f.LauncherName = Field(_LAUNCHER.kind, description="What starts the ranks of a node.")
    command: list[f.Argument] = Field(
        [],
        description="Argument list; never seen by a shell. Ranks start in a folder of their node: give absolute paths. "
        "Default: the shipped trainer.",
    )
    environment: dict[str, f.Argument] = Field({}, description="Plain settings for every rank; no secrets.")
    start_limit: f.Duration = Field(
        _LAUNCHER.start_limit_s, description="Time within which all ranks must have started."
    )
    grace: f.Duration = Field(_LAUNCHER.grace_s, description="Time to save and end before ranks are killed.")
    hang_limit: f.Duration = Field(
        _LAUNCHER.hang_limit_s,
        description="Silence after which ranks count as hung, once one of them has used the agent.",
    )


class EvaluationBlock(Block):
    """Held-out evaluation after training, and its gate."""

    command: list[f.Argument] = Field(
        [], description="Argument list; never seen by a shell. Default: the shipped evaluation."
    )
    max_loss: Annotated[float, Field(gt=0)] | None = Field(
        None, description="The run fails above this held-out loss (nats per token). Default: no gate."
    )
    num_batches: f.Count = Field(_EVALUATION.num_batches, description="Batches to average over.")
    limit: f.Duration = Field(_EVALUATION.limit_s, description="Time the evaluation may take.")
    slice: f.SliceName | None = Field(
        None,
        description="Run on a slice of a divided accelerator: a `mig` instance, a share of its `time`, or `any`. "
        "Default: on a whole one.",
    )


class RetriesBlock(Block):
    """Relaunches by failure class. Preemption spends none of them."""

    code: f.CountOrZero = Field(_RETRIES.max_code_failures, description="Relaunches after faults of the user's code.")
    infrastructure: f.CountOrZero = Field(
        _RETRIES.max_infrastructure_failures, description="Relaunches after faults of nodes."
    )
    without_progress: f.Count = Field(
        _RETRIES.max_attempts_without_progress,
        description="Launches in a row without a new checkpoint before giving up.",
    )


class QueueBlock(Block):
    """The run waits its turn on clusters without a scheduler of their own, for as many nodes as suit it."""

    team: f.Word = Field(DEFAULT_TEAM, description="Team whose quota it uses, as the fleet file names it.")
    priority: f.Word = Field(
        DEFAULT_PRIORITY,
        description="Priority class: low, normal, high or urgent, unless the fleet file has others. "
        "It may preempt runs of a lower one.",
    )
    max_wait: f.Duration | None = Field(None, description="Give up after waiting for so long in a row. Default: never.")


class LoraBlock(Block):
    """Low-rank adaptation; only for the stage ``lora``."""

    rank: f.Count = Field(description="Rank of the adapters.")
    targets: list[f.LoraTargetName] = Field(
        list(ALL_LINEAR), min_length=1, description="Linear layers that get adapters; experts are the routed ones."
    )


class TrafficBlock(Block):
    """What each member of one group of ranks sends per step."""

    group: f.Word = Field(description="Name of the group.")
    peer: f.Word | None = Field(None, description="Group the traffic goes to. Default: stays within the group.")
    group_size: f.Count = Field(description="Ranks in the group.")
    collective: f.Word = Field(
        description="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, or another."
    )
    bytes_per_step: f.Bytes = Field(description="What each member sends per step.")


class CommunicationBlock(Block):
    """The job's own statement of its traffic."""

    version: Literal[1] = Field(description="Version of this block's form.")
    traffic: list[TrafficBlock] = Field(description="Traffic by group.")


class TierBlock(Block):
    """Bytes a rank holds in one tier of memory."""

    tier: Literal["hbm", "host", "nvme"] = Field(description="Accelerator memory, host memory or local disk.")
    bytes_per_rank: f.Bytes = Field(
        description="What one rank holds there: of a node's host memory or disks its accelerator's share at most."
    )


class MemoryBlock(Block):
    """The job's own statement of its memory."""

    version: Literal[1] = Field(description="Version of this block's form.")
    tiers: list[TierBlock] = Field(description="Bytes by tier, each tier once.")


OBJECTIVES = tuple(ObjectiveBlock.model_fields)


def _one_objective(word: str) -> dict[str, Any]:
    return {word: 1.0}


def _nothing_pinned(_: str) -> dict[str, Any]:
    return {}


def _preset(word: str) -> dict[str, Any]:
    return {"preset": word}


class CompressionBlock(Block):
    """Lossy compression of the gradients that replicas exchange. Pins ``parallelism.zero_stage`` to 0.

    It may cost accuracy: `llmsched plan` says what of each kind is known, and prices it.
    """

    kind: f.CompressionName = Field(description="How gradients are compressed.")
    kept: f.Ratio = Field(_COMPRESSION.kept_ratio, description="Share of the values that top_k sends.")
    rank: f.Count = Field(_COMPRESSION.rank, description="Rank of power_sgd's matrices.")
    exact_steps: f.CountOrZero = Field(
        _COMPRESSION.num_exact_steps, description="Steps at the start that are exchanged whole."
    )


class SpecModel(Block):
    """A workload: one training run, in the terms of the trade."""

    version: Literal[1] = Field(description="Version of this form.")
    name: f.Label = Field(description="Label of the run; free text.")
    stage: f.Stage = Field(TrainingStage.PRETRAIN, description="Part of the model's life.")
    model: Annotated[ModelBlock, f.shorthand(_preset)] | None = Field(
        None, description="What is trained. Left out only by a job that states communication and memory."
    )
    lora: LoraBlock | None = Field(None, description="Low-rank adaptation.")
    optimizer: OptimizerBlock = Field(OptimizerBlock(), description="Optimizer.")
    precision: PrecisionBlock = Field(PrecisionBlock(), description="Formats of operands, parameters and gradients.")
    compression: CompressionBlock | None = Field(None, description="Lossy compression of gradients. Default: none.")
    software: SoftwareBlock = Field(SoftwareBlock(), description="What the trainer's software does.")
    data: DataBlock = Field(description="Training data.")
    batch: BatchBlock = Field(description="Sequence length and global batch.")
    budget: BudgetBlock = Field(description="When to stop.")
    objective: Annotated[ObjectiveBlock, f.shorthand(_one_objective, words=OBJECTIVES)] = Field(
        ObjectiveBlock(throughput=1.0), description="What plans are chosen by. Default: throughput."
    )
    parallelism: Annotated[ParallelismBlock, f.shorthand(_nothing_pinned, words=("auto",))] = Field(
        ParallelismBlock(), description="auto, or pinned degrees."
    )
    placement: PlacementBlock = Field(PlacementBlock(), description="Placement wishes.")
    roles: list[RoleBlock] = Field([], description="Roles of the gang. Default: a trainer alone.")
    capacity: CapacityBlock = Field(CapacityBlock(), description="Where capacity may come from.")
    checkpoint: CheckpointBlock = Field(CheckpointBlock(), description="Checkpoints.")
    launcher: LauncherBlock = Field(LauncherBlock(), description="How ranks start.")
    evaluation: EvaluationBlock | None = Field(None, description="Held-out evaluation. Default: none.")
    retries: RetriesBlock = Field(RetriesBlock(), description="Relaunches by failure class.")
    queue: QueueBlock | None = Field(
        None, description="Wait in the queue. Default: plan at once on what is left over, in whatever size fits."
    )
    communication: CommunicationBlock | None = Field(None, description="The job's own statement of its traffic.")
    memory: MemoryBlock | None = Field(None, description="The job's own statement of its memory.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of everything random.")
