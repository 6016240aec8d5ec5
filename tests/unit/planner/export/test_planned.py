from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import LaunchSetting, Plan, Prediction
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.domain.workload import BatchPhase, BudgetSpec
from airflow_llmsched.planner.export.planned import common_notes, planned_run
from tests.support.fleets import node, tree_of, workload
from tests.support.models import LLAMA31_8B
from tests.support.tool_options import planned

ONE_NODE = ParallelLayout(dp=8)
PHASES = (
    BatchPhase(from_tokens=0, sequence_length_tokens=4096, num_sequences=256),
    BatchPhase(from_tokens=10**9, sequence_length_tokens=8192, num_sequences=512),
)


def test_ranks_are_counted_by_node_and_the_allocators_settings_come_along() -> None:
    slots = tuple(
        RankSlot(rank=rank, node=NodeId(f"n{rank // 2}"), slot=rank, local_rank=rank % 2) for rank in range(3)
    )
    plan = Plan(
        layout=ParallelLayout(dp=3),
        placement=Placement(slots=slots),
        prediction=Prediction(
            step_s=1.0, step_breakdown_s={}, memory_bytes_per_rank=1, memory_breakdown_bytes={}, mfu_ratio=0.0,
            tokens_per_s=1.0, usd_per_hour=1.0, error_ratio=0.5, allocator_settings="A=b:True",
        ),
        node_shape="local-cpu",
        num_domains=1,
    )  # fmt: skip
    run = planned_run(workload(), plan)
    assert (run.ranks_on_nodes, run.allocator_settings) == ((2, 1), "A=b:True")
    others = (node("ill", unusable="fan"), node("other", shape="p5.48xlarge"), node("spare", shape="local-cpu"))
    fleet = tree_of(node("n0", shape="local-cpu", unusable="chosen before"), *others)
    assert planned_run(workload(), plan, tree=fleet).excluded == ("ill", "other")


def test_shards_span_all_replicas_unless_told() -> None:
    whole, hybrid = (
        planned(ParallelLayout(dp=8, cp=2, zero_stage=3, shard_size=size)) for size in (None, 4)
    )  # fmt: skip
    assert (whole.num_sharing, whole.num_copies) == (16, 1)
    assert (hybrid.num_sharing, hybrid.num_copies) == (4, 4)


def test_experts_are_split_as_layers_are_unless_told() -> None:
    assert planned(ParallelLayout(dp=2, tp=4)).expert_tp == 4
    assert planned(ParallelLayout(dp=2, tp=4, expert_tp=1)).expert_tp == 1


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    assert planned(ParallelLayout(dp=2, tp=4)).uses_sequence_parallel
    assert not planned(ParallelLayout(dp=8)).uses_sequence_parallel
    assert not planned(ParallelLayout(dp=2, tp=4, sequence_parallel=False)).uses_sequence_parallel


def test_one_batch_has_a_number_of_steps_and_a_schedule_says_which_phase_is_meant() -> None:
    alone = planned(ParallelLayout(dp=8))
    assert alone.num_steps == 10
    assert not any("phase" in note for note in common_notes(alone))
    run = planned(ParallelLayout(dp=512), batch=PHASES, budget=BudgetSpec(num_tokens=10**12))
    assert run.num_steps is None
    assert run.phase == PHASES[1]
    (note,) = (each for each in common_notes(run) if "phase" in each)
    assert "512 sequences of 8192 tokens" in note
    assert "from 0 tokens: 256 sequences of 4096 tokens" in note


def test_the_environment_that_the_memory_assumes_is_noted() -> None:
    (note,) = common_notes(replace(planned(ONE_NODE), allocator_settings="A=b:True"))
    assert "assumes A=b:True in the environment" in note
    assert common_notes(planned(ONE_NODE)) == ()


def test_the_environment_that_the_network_is_reckoned_with_is_noted_with_its_reason() -> None:
    setting = LaunchSetting(name="NCCL_COLLNET_ENABLE", value="1", why="switches add up")
    (note,) = common_notes(replace(planned(ONE_NODE), launch_settings=(setting,)))
    assert note == "Set NCCL_COLLNET_ENABLE=1 for every rank: switches add up."


def test_what_the_spec_says_of_the_software_is_noted_for_whoever_sets_it_up() -> None:
    assert not any("software" in note for note in common_notes(planned(ParallelLayout(dp=8))))
    run = planned(ParallelLayout(dp=8), software=Software(fused_elementwise=True, loss=LossKernel.FUSED))
    assert "fused_elementwise true, loss fused" in common_notes(run)[-1]


def test_chunks_are_those_that_were_priced() -> None:
    """Llama 3.1 405B over 16 stages: 126 layers, one less on the first and on the last (Dubey et al. 2024)."""
    run = planned(ParallelLayout(dp=1, pp=16), replace(LLAMA31_8B, num_layers=126))
    assert [len(chunk) for chunk in run.chunks] == [7, *[8] * 14, 7]
    assert [layer for chunk in run.chunks for layer in chunk] == list(range(126))
    assert not run.has_even_chunks
    assert planned(ParallelLayout(dp=1, pp=4, vp=2)).has_even_chunks
