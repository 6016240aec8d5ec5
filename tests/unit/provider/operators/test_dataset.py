from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.provider import run_files
from airflow_llmsched.staging.verify import load_manifest


@pytest.fixture
def opened(pipeline):
    pipeline.run("open_run")
    return pipeline


def test_the_result_names_a_manifest_that_holds_what_it_says(opened):
    result = opened.run("stage_dataset")
    manifest = load_manifest(result["manifest"])
    assert result["digest"] == manifest.digest
    assert result["num_train_tokens"] == manifest.num_train_tokens > result["num_held_out_tokens"] > 0
    stored = run_files.read(opened.scope, run_files.DATASET_FILE, DatasetManifest, made_by="x")
    assert stored == manifest


def test_staging_again_finds_it_there(opened):
    first = opened.run("stage_dataset")
    before = Path(first["manifest"]).stat().st_mtime_ns
    assert opened.run("stage_dataset") == first
    assert Path(first["manifest"]).stat().st_mtime_ns == before


def test_a_damaged_shard_is_never_trained_on(opened):
    result = opened.run("stage_dataset")
    (shard, *_) = Path(result["manifest"]).parent.glob("train-*.bin")
    good = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(b"x" * len(good))
    assert opened.run("stage_dataset")["digest"] == result["digest"]
    assert shard.read_bytes() == good


def test_text_that_is_not_there_fails_for_good_and_names_the_folder(opened):
    shutil.rmtree(opened.folder / "corpus")
    with pytest.raises(AirflowFailException, match="corpus"):
        opened.run("stage_dataset")


def test_time_spent_is_on_the_ledger_even_when_staging_fails(opened):
    shutil.rmtree(opened.folder / "corpus")
    with pytest.raises(AirflowFailException):
        opened.run("stage_dataset")
    (span,) = [event.span for event in opened.journal() if event.span.bucket is Bucket.STAGE]
    assert span.label == "pretraining.stage_dataset"
    assert span.end_s > span.start_s
