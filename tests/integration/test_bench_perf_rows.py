"""Readers of measured steps, on rows typed from the files that they read (sources in each reader)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import PipelineSchedule, Recompute
from airflow_llmsched.planner.perf.parameters import count_parameters
from tests.bench.perf_rows import bridge, dgxc, megatron_tables, mlperf, mosaic, vtrain
from tests.bench.perf_rows.models import NAMED

VTRAIN = (
    "vtrain_ground_truth_multi.csv",
    "Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
    "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)",
)
MOSAIC = (
    "mosaicml_llmfoundry.csv",
    "section,model,seq_len,gpus,gpu,mfu_pct,hfu_pct,model_tflops_per_gpu,micro_batch,grad_accum,global_batch_seqs,"
    "seqs_per_s,tokens_per_s,tokens_per_s_per_gpu,global_batch_tokens,precision,mp_mode,sharding,act_ckpt,act_offload,"
    "n_params",
)
TABLES = (
    "megatron_llama_tables.csv",
    "source,verified_how,model_params_B,heads,hidden,layers,seq,vocab,gpu,gpus,tp,pp,dp,gbs,mbs,precision,recompute,"
    "tflops_per_gpu,mfu_pct,iter_time_s,days_300B_tokens,notes",
)
BRIDGE = (
    "megatron_bridge_perf.csv",
    "release,kind,model,system,gpus,precision,gbs,mbs,seq_len,fsdp,tp,pp,cp,vp,ep,ga,tokens_per_s_per_gpu,"
    "model_tflops_per_gpu,source_line",
)
DGXC = (
    "dgxc_step_times.csv",
    "model_dtype_label,gpus,step_time_s,seqlen,tp,pp,cp,ep,vp,mbs,gbs,accelerator,precision",
)
MLPERF = (
    "mlperf_step_times.csv",
    "benchmark,accelerator,accelerators,gbs,seq_len,grad_accum,mbs,tp,pp,cp,vp,step_s_p50,config_files",
)


def written(folder: Path, table: tuple[str, str], *rows: str) -> Path:
    name, header = table
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder


def test_a_row_of_vtrains_many_nodes_recomputes_and_has_four_cards_a_node(tmp_path):
    reading = vtrain.multi(written(tmp_path, VTRAIN, "39.1,512,1536,2,8192,64,48,2048,8,8,8,15001.9"))
    (step,) = reading.steps
    assert (step.source, step.row, step.step_s) == ("vtrain_ground_truth_multi", 2, pytest.approx(15.0019))
    assert step.num_ranks == 512
    assert (step.layout.num_micro_batches, step.layout.recompute) == (96, Recompute.FULL)
    assert step.shape.inter_node_bandwidth_bytes_per_s == 12.5e9
    assert not step.job.software.fused_attention


def test_a_mosaic_row_has_the_published_count_of_parameters_and_shards_them(tmp_path):
    row = "H100,7b,2048,128,h100_80gb,45.71,45.71,452,6,1,768,654,1340830,10475,1572864,{},{},FULL_SHARD,False,False,{}"
    rows = [row.format("amp_bf16", "DEFAULT", 6658859008), row.format("bf16", "PURE", 6658859009)]
    reading = mosaic.read(written(tmp_path, MOSAIC, *rows))
    (step,) = reading.steps
    assert count_parameters(step.job.model).total == 6658859008
    assert step.layout.zero_stage == 3
    assert step.job.precision.gradients is NumberFormat.FP32
    assert step.step_s == pytest.approx(1572864 / 1340830)
    assert reading.left_out == {"parameters differ from the published count": 1}
    assert reading.num_rows == 2


def test_the_paper_table_gets_its_micro_batches_and_chunks_from_the_scripts_of_that_table(tmp_path):
    reading = megatron_tables.read(
        written(
            tmp_path, TABLES,
            "SC21 Table1,read,145.6,96,12288,80,2048,51200,A100-80GB,1536,8,8,24,2304,,fp16,full,148,47,24.817,,",
            "Megatron-LM README Jan2021,read,145.6,96,12288,80,2048,51200,A100-80GB,1536,8,8,24,2304,,fp16,full,136,44,"
            "27.007,,earlier code without interleaving",
        )
    )  # fmt: skip
    paper, earlier = reading.steps
    assert (paper.layout.vp, paper.layout.micro_batch_size, paper.layout.schedule) == (
        2,
        2,
        PipelineSchedule.INTERLEAVED,
    )
    assert (earlier.layout.vp, earlier.layout.num_micro_batches) == (1, 48)


def test_the_long_row_of_llama_3_takes_its_replicas_from_the_number_of_gpus(tmp_path):
    reading = megatron_tables.read(
        written(
            tmp_path, TABLES,
            "Llama 3 paper Table4,read,405,128,16384,126,131072,128256,H100,16384,8,16,4,64,,bf16,none (8K),380,38,,,"
            '"CP=16; table prints DP=4"',
        )
    )  # fmt: skip
    (step,) = reading.steps
    assert (step.layout.dp, step.layout.cp, step.job.tokens_per_step) == (8, 16, 16 * 2**20)


def test_bridge_rows_that_are_no_pre_training_of_a_transformer_are_counted_by_reason(tmp_path):
    row = "26.04,{} Performance,{},DGX-H100,64,FP8,256,1,8192,{},4,8,1,5,n/a,,1639 (1500),736,x"
    reading = bridge.read(
        written(
            tmp_path, BRIDGE, row.format("Pre-Training", "LLAMA3_70B", 0), row.format("LoRA", "LLAMA3_70B", 0),
            row.format("Pre-Training", "Nemotron_3_Super", 0),
        )
    )  # fmt: skip
    (step,) = reading.steps
    assert reading.left_out == {"LoRA": 1, "state-space layers": 1}
    assert (step.layout.dp, step.layout.num_micro_batches, step.layout.zero_stage) == (2, 128, 1)
    assert step.step_s == pytest.approx(256 * 8192 / 64 / 1639)
    assert step.job.precision.compute is NumberFormat.FP8


def test_a_recipe_without_its_configuration_is_left_out(tmp_path):
    reading = dgxc.read(
        written(
            tmp_path, DGXC,
            "Llama 3.1 405b BF16,32,5.4,,,,,,,,,H100,BF16",
            "Llama 3.1 70b BF16,64,14.66,8192,4,4,2,NA,5,1,128,H100,BF16",
        )
    )  # fmt: skip
    (step,) = reading.steps
    assert reading.left_out == {"no parallelism published": 1}
    assert step.job.model == NAMED["llama-3-70b"]
    assert (step.layout.cp, step.layout.vp, step.layout.num_micro_batches) == (2, 5, 64)


def test_accumulation_that_was_logged_gives_the_micro_batch(tmp_path):
    reading = mlperf.read(
        written(
            tmp_path, MLPERF,
            "llama31_405b,NVIDIA H100-SXM5-80GB,2048,1152,8192,72.0,1,8,8,2,8,14.2202,c.sh",
            "llama31_8b,NVIDIA H100-SXM5-80GB,64,64,8192,1.0,,1,1,1,,0.7205,c.sh",
            "llama31_8b,NVIDIA H100-SXM5-80GB,64,64,8192,1.0,,1,1,1,,,c.sh",
            "llama2_70b_lora,NVIDIA H100-SXM5-80GB,8,8,,4,,4,1,1,,0.5,c.sh",
        )
    )  # fmt: skip
    large, small = reading.steps
    assert (large.layout.dp, large.layout.num_micro_batches) == (16, 72)
    assert (small.layout.dp, small.layout.micro_batch_size) == (64, 1)
    assert reading.left_out == {"no step logged": 1, "LoRA": 1}
