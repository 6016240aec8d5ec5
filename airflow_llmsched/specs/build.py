"""From a sound spec to the domain's ``WorkloadSpec``. Nothing is checked here."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.queue import SliceAsk, SliceKind
from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.domain.roles import RoleSpec
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import (
    ALL_LINEAR,
    BatchPhase,
    BudgetSpec,
    CapacityWish,
    CheckpointSpec,
    DatasetSpec,
    EvaluationSpec,
    GradientCompression,
    LauncherSpec,
    MemoryDemand,
    ModelShape,
    ObjectiveWeights,
    OptimizerSpec,
    ParallelismWish,
    PrecisionSpec,
    RetrySpec,
    TrafficDemand,
    WorkloadSpec,
)
from airflow_llmsched.specs import schema


def build(spec: schema.SpecModel, *, shape: ModelShape | None, phases: tuple[BatchPhase, ...]) -> WorkloadSpec:
    """Return the workload. Paths in ``spec`` have been resolved."""
    budget = spec.budget
    return WorkloadSpec(
        name=spec.name,
        stage=spec.stage,
        model=shape,
        data=_data(spec.data),
        batch=phases,
        budget=BudgetSpec(
            num_tokens=budget.tokens,
            num_steps=budget.steps,
            deadline_s=budget.deadline,
            max_usd=budget.max_usd,
            on_overrun=budget.on_overrun,
        ),
        optimizer=OptimizerSpec(**spec.optimizer.model_dump()),
        precision=PrecisionSpec(**spec.precision.model_dump()),
        objective=ObjectiveWeights(**spec.objective.model_dump()),
        parallelism=_parallelism(spec),
        placement=_placement(spec.placement),
        roles=tuple(_role(role) for role in spec.roles),
        capacity=_capacity(spec.capacity),
        checkpoint=_checkpoint(spec.checkpoint),
        launcher=_launcher(spec.launcher),
        evaluation=_evaluation(spec.evaluation) if spec.evaluation else None,
        retries=RetrySpec(
            max_code_failures=spec.retries.code,
            max_infrastructure_failures=spec.retries.infrastructure,
            max_attempts_without_progress=spec.retries.without_progress,
        ),
        queue=QueueWish(team=spec.queue.team, priority=spec.queue.priority, max_wait_s=spec.queue.max_wait)
        if spec.queue
        else None,
        communication=_communication(spec.communication) if spec.communication else (),
        memory=_memory(spec.memory) if spec.memory else (),
        lora_rank=spec.lora.rank if spec.lora else None,
        lora_targets=tuple(spec.lora.targets) if spec.lora else ALL_LINEAR,
        compression=_compression(spec.compression) if spec.compression else None,
        software=Software(**spec.software.model_dump()),
        freezes_encoder=spec.model.freeze_encoder if spec.model else False,
        seed=spec.seed,
    )


def _parallelism(spec: schema.SpecModel) -> ParallelismWish:
    """Return the pins. What is compressed is a whole gradient on each rank, so that ZeRO shards nothing."""
    wish = ParallelismWish(**spec.parallelism.model_dump())
    return replace(wish, zero_stage=0) if spec.compression else wish


def _compression(block: schema.CompressionBlock) -> GradientCompression:
    return GradientCompression(
        kind=block.kind, kept_ratio=block.kept, rank=block.rank, num_exact_steps=block.exact_steps
    )


def _data(block: schema.DataBlock) -> DatasetSpec:
    return DatasetSpec(
        kind=block.kind,
        source=block.source,
        shard_bytes=block.shard_size,
        held_out_ratio=block.held_out,
        max_bytes=block.max_size,
    )


def _placement(block: schema.PlacementBlock) -> tuple[PlacementWish, ...]:
    wishes = []
    for group in RankGroup:
        wish: schema.LevelWishBlock | None = getattr(block, group.value)
        for level, required in ((wish.required, True), (wish.preferred, False)) if wish else ():
            if level is not None:
                wishes.append(PlacementWish(group=group, level=level, required=required))
    return tuple(wishes)


def _role(block: schema.RoleBlock) -> RoleSpec:
    return RoleSpec(
        kind=block.kind,
        num_ranks=block.num_ranks,
        command=tuple(block.command),
        accelerators_per_rank=block.accelerators_per_rank,
    )


def _capacity(block: schema.CapacityBlock) -> CapacityWish:
    return CapacityWish(
        clouds=tuple(block.clouds),
        regions=tuple(block.regions),
        jurisdictions=tuple(block.jurisdictions),
        vendors=tuple(block.vendors),
        capacity_types=tuple(block.capacity_types),
        min_ranks=block.min_ranks,
        max_ranks=block.max_ranks,
    )


def _checkpoint(block: schema.CheckpointBlock) -> CheckpointSpec:
    return CheckpointSpec(
        root=block.root,
        init_from=block.init_from,
        format=block.format,
        interval_steps=block.interval_steps,
        interval_s=block.interval,
        keep_last=block.keep_last,
        require_resume=block.require_resume,
        separate_paths=block.separate_paths,
    )


def _launcher(block: schema.LauncherBlock) -> LauncherSpec:
    return LauncherSpec(
        kind=block.kind,
        command=tuple(block.command),
        environment=dict(block.environment),
        start_limit_s=block.start_limit,
        grace_s=block.grace,
        hang_limit_s=block.hang_limit,
    )


def _evaluation(block: schema.EvaluationBlock) -> EvaluationSpec:
    kind = None if block.slice in (None, "any") else SliceKind(block.slice)
    return EvaluationSpec(
        command=tuple(block.command),
        max_loss=block.max_loss,
        num_batches=block.num_batches,
        limit_s=block.limit,
        slices=None if block.slice is None else SliceAsk(kind=kind),
    )


def _communication(block: schema.CommunicationBlock) -> tuple[TrafficDemand, ...]:
    return tuple(
        TrafficDemand(
            group=each.group,
            peer_group=each.peer,
            group_size=each.group_size,
            collective=each.collective,
            bytes_per_step=each.bytes_per_step,
        )
        for each in block.traffic
    )


def _memory(block: schema.MemoryBlock) -> tuple[MemoryDemand, ...]:
    return tuple(MemoryDemand(tier=each.tier, bytes_per_rank=each.bytes_per_rank) for each in block.tiers)
