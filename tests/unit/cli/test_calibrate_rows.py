from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from airflow_llmsched.cli.calibrate_rows import read_rows
from airflow_llmsched.cli.main import app
from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.errors import SpecError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.calibration import packaged
from airflow_llmsched.planner.perf.predict import MeasuredSteps
from airflow_llmsched.specs import presets
from tests.support.fleets import workload
from tests.support.models import LLAMA2_7B
from tests.support.specs import small

RUN = workload(LLAMA2_7B, num_sequences=256)


def written(folder: Path, *lines: str) -> Path:
    file = folder / "timed.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_a_row_says_the_layout_and_its_time_and_the_spec_the_rest(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "shape,dp,tp,pp,vp,zero_stage,micro_batch_size,recompute,step_s,model,sequence_length,global_batch",
        "p5.48xlarge,8,4,2,2,1,2,full,3.5,,,",
        "p4d.24xlarge,4,,,,3,,,9,gpt2-1.5b,1024,64",
    )
    first, second = read_rows(file, RUN)
    assert first.layout == ParallelLayout(
        dp=8, tp=4, pp=2, vp=2, zero_stage=1, micro_batch_size=2, num_micro_batches=16,
        recompute=Recompute.FULL, schedule=PipelineSchedule.INTERLEAVED,
    )  # fmt: skip
    assert (first.source, first.row, first.step_s, first.ranks_per_node) == ("timed.csv", 2, 3.5, 8)
    assert first.job.model == LLAMA2_7B
    assert second.job.model == presets.get("gpt2-1.5b").shape
    assert (second.job.sequence_length_tokens, second.job.num_sequences, second.ranks_per_node) == (1024, 64, 4)
    assert second.layout.num_micro_batches == 16


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["shape,dp,step"], "timed.csv.step: is no column here"),
        (["shape,step_s"], "timed.csv.dp: is missing"),
        (["shape,dp,step_s", "p9,1,3"], "line 2: shape = 'p9': no such node shape"),
        (["shape,dp,step_s", "p5.48xlarge,7,3"], "line 2: global_batch = 256: does not divide into 7 replicas"),
        (["shape,dp,step_s", "p5.48xlarge,8,3", "p5.48xlarge,8,-1"], "line 3: step_s = '-1': must be seconds"),
        (["shape,dp,step_s", "p5.48xlarge,8,soon"], "step_s = 'soon': must be a number"),
        (["shape,dp,step_s", "p5.48xlarge,0,3"], "dp = 0: must be a whole number, 1 or more"),
        (["shape,dp,step_s", "p5.48xlarge,1.5,3"], "dp = '1.5': must be a number"),
        (["shape,dp,step_s", "p5.48xlarge,8"], "has not as many cells"),
        (["shape,dp,step_s", "p5.48xlarge,8,3,4"], "has not as many cells"),
        (["shape,dp,tp,step_s", "p5.48xlarge,1,3,3"], "tp = 3: does not divide the 32 attention heads"),
        (["shape,dp,pp,step_s", "p5.48xlarge,1,64,3"], "pp = 64: leaves parts of the pipeline"),
        (["shape,dp,step_s,recompute", "p5.48xlarge,8,3,modules"], "recompute = 'modules': must be one of none"),
        (["shape,dp,step_s,model", "p5.48xlarge,8,3,mine"], "model = 'mine': is no preset"),
        (["shape,dp,step_s", "p3dn.24xlarge,8,3"], "shape = 'p3dn.24xlarge': its v100-32gb has no bf16"),
        (["shape,dp,step_s,zero_stage", "p5.48xlarge,8,3,4"], "zero_stage = 4: must be at most 3"),
        (["shape,dp,step_s,ranks_per_node", "p5.48xlarge,64,3,16"], "ranks_per_node = 16: is more than"),
        (["shape,dp,step_s,ranks_per_node", "p5.48xlarge,4,3,8"], "ranks_per_node = 8: is more than"),
        (["shape,dp,step_s,ep", "p5.48xlarge,8,3,2"], "ep = '2': ep needs a mixture of experts"),
        (["shape,dp,step_s,model,ep", "p5.48xlarge,8,3,mixtral-8x7b,3"], "ep = '3': ep does not divide the experts"),
        (["shape,dp,step_s,model,ep", "p5.48xlarge,2,3,mixtral-8x7b,4"], "ep = '4': ep * expert-tp does not divide"),
        (["shape,dp,step_s,cp", "p5.48xlarge,1,3,3"], "cp = '3': the sequence does not divide"),
        (["shape,dp,step_s,shard_size,zero_stage", "p5.48xlarge,8,3,3,3"], "shard_size = '3': the shard size does not"),
        (["shape,dp,step_s,shard_size", "p5.48xlarge,8,3,4"], "shard_size = '4': a pinned shard size needs ZeRO"),
        (["shape,dp,step_s,schedule", "p5.48xlarge,8,3,zero_bubble"], "schedule = 'zero_bubble': interleaved and zero"),
        (
            ["shape,dp,step_s,offload", "ct5p-hightpu-4t,8,3,optimizer_nvme"],
            "offload = 'optimizer_nvme': ct5p-hightpu-4t has no room",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_rows(written(tmp_path, *lines), RUN)
    assert complaint in str(refused.value)


def test_a_file_that_is_no_table_and_a_job_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_rows(tmp_path / "none.csv", RUN)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        read_rows(tmp_path / "binary.csv", RUN)
    with pytest.raises(SpecError, match="states its traffic"):
        read_rows(tmp_path / "none.csv", replace(RUN, model=None))


def test_machines_that_a_table_shows_to_be_slower_are_fitted_and_kept(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(small({"model": "llama-2-7b", "batch.sequence_length": 4096})), encoding="utf-8")
    layouts = ["32,1,3,1", "16,2,1,1", "8,4,1,1", "8,4,1,2", "4,8,1,2", "16,1,3,2"]
    lines = ["shape,dp,tp,zero_stage,micro_batch_size,global_batch,step_s"]
    untimed = written(tmp_path, *lines, *(f"p4de.24xlarge,{each},256,1" for each in layouts))
    expected_s = MeasuredSteps(read_rows(untimed, RUN)).predicted_s_M(packaged().rates_of)
    timed = zip(layouts, expected_s, strict=True)
    file = written(tmp_path, *lines, *(f"p4de.24xlarge,{each},256,{1.3 * step_s:.3f}" for each, step_s in timed))
    shown = CliRunner().invoke(app, ["calibrate", str(spec), str(file), "--state-root", str(tmp_path / "state")])
    assert shown.exit_code == 0, shown.output
    kept = calibration_file.load(open_store(str(tmp_path / "state")))
    assert kept is not None
    assert kept.kinds["ampere"].num_rows_by_source == {"timed.csv": 6}
    fitted_s = MeasuredSteps(read_rows(file, RUN)).predicted_s_M(kept.rates_of)
    assert (abs(fitted_s / (1.3 * expected_s) - 1) < 0.1).all()
