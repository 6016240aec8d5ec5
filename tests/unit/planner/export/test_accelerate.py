from __future__ import annotations

from typing import Any

import pytest
import yaml

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, Recompute
from airflow_llmsched.domain.workload import PrecisionSpec
from airflow_llmsched.planner.export import accelerate
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun
from tests.support.models import QWEN3_30B_A3B
from tests.support.tool_options import options, planned

RUNS = {
    "sharded": planned(ParallelLayout(dp=16, zero_stage=3, recompute=Recompute.FULL, num_micro_batches=4)),
    "hybrid and split": planned(ParallelLayout(dp=8, tp=2, cp=2, zero_stage=2, shard_size=4)),
    "offloaded": planned(
        ParallelLayout(dp=8, zero_stage=3, recompute=Recompute.FULL, offload=Offload.ACTIVATIONS_HOST)
    ),
    "replicas in fp8": planned(ParallelLayout(dp=8), precision=PrecisionSpec(compute=NumberFormat.FP8)),
}  # fmt: skip


def config(run: PlannedRun) -> dict[str, Any]:
    return yaml.safe_load(accelerate.render(run))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_accelerate_knows_every_key_and_value(run: PlannedRun) -> None:
    known = options("accelerate")
    found = config(run)
    assert set(found) <= set(known["keys"])
    assert found["distributed_type"] in known["distributed_types"]
    assert found["mixed_precision"] in known["mixed_precision"]
    for name in ("fsdp_config", "parallelism_config", "fp8_config"):
        for key, value in found.get(name, {}).items():
            option = known["nested"][key]
            assert option["takes"] != "int" or isinstance(value, int)
            assert {str(value), str(value).lower()} & set(option.get("choices", [str(value)])), key


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_degrees_cover_the_processes(run: PlannedRun) -> None:
    found = config(run)
    degrees = found.get("parallelism_config", {"replicas": run.layout.dp}).values()
    product = 1
    for degree in degrees:
        product *= degree
    assert found["num_processes"] == product == run.layout.world_size


def test_zero_2_keeps_weights_gathered_and_zero_3_does_not() -> None:
    assert config(RUNS["sharded"])["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert config(RUNS["hybrid and split"])["fsdp_config"]["fsdp_reshard_after_forward"] is False


def test_shards_and_copies_are_told_apart() -> None:
    assert config(RUNS["hybrid and split"])["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 4,
        "parallelism_config_dp_shard_size": 2,
        "parallelism_config_tp_size": 2,
        "parallelism_config_cp_size": 2,
    }


def test_what_code_must_do_is_noted_in_the_file() -> None:
    text = accelerate.render(RUNS["sharded"])
    assert "# In code: a data loader of batch size 1 and Accelerator(gradient_accumulation_steps=4).\n" in text
    assert "machine_rank" in text.split("compute_environment")[0]


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (ParallelLayout(dp=8, pp=2, zero_stage=3), "layout.pp"),
        (ParallelLayout(dp=8, zero_stage=1), "layout.zero_stage"),
        (ParallelLayout(dp=4, tp=2), "layout.zero_stage"),
        (ParallelLayout(dp=8, cp=2, zero_stage=3, shard_size=1), "layout.shard_size"),
        (ParallelLayout(dp=8, zero_stage=2, offload=Offload.OPTIMIZER_HOST), "layout.offload"),
        (ParallelLayout(dp=8, zero_stage=3, recompute=Recompute.MODULES), "layout.recompute"),
    ],
)  # fmt: skip
def test_layouts_beyond_it_are_named(layout: ParallelLayout, path: str) -> None:
    assert [gap.path for gap, _ in found_gaps(accelerate.GAPS, planned(layout))] == [path]


def test_it_has_no_expert_parallelism() -> None:
    run = planned(ParallelLayout(dp=8, ep=8, zero_stage=3), QWEN3_30B_A3B)
    assert [gap.path for gap, _ in found_gaps(accelerate.GAPS, run)] == ["layout.ep"]
