"""Blocks are strict, described, and default to what the domain defaults to."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_llmsched.domain.workload import (
    CapacityWish,
    CheckpointSpec,
    LauncherSpec,
    ObjectiveWeights,
    OptimizerSpec,
    ParallelismWish,
    PrecisionSpec,
    RetrySpec,
)
from airflow_llmsched.specs.json_schema import blocks
from airflow_llmsched.specs.schema import OBJECTIVES, SpecModel
from tests.support.specs import SMALL, load_small


def test_what_a_spec_leaves_out_means_what_the_domain_means_by_default() -> None:
    spec = load_small()
    assert spec.optimizer == OptimizerSpec()
    assert spec.precision == PrecisionSpec()
    assert spec.objective == ObjectiveWeights()
    assert spec.parallelism == ParallelismWish()
    assert spec.capacity == CapacityWish()
    assert spec.checkpoint == CheckpointSpec()
    assert spec.launcher == LauncherSpec()
    assert spec.retries == RetrySpec()


def test_every_key_of_every_block_says_what_it_means() -> None:
    for block in blocks():
        assert block.__doc__, block.__name__
        for name, info in block.model_fields.items():
            assert info.description, f"{block.__name__}.{name}"


def test_unknown_keys_and_coercions_are_refused() -> None:
    with pytest.raises(ValidationError):
        SpecModel.model_validate({**SMALL, "other": 1})
    with pytest.raises(ValidationError):
        SpecModel.model_validate({**SMALL, "seed": "1"})


def test_objectives_are_the_weights_of_the_domain() -> None:
    assert set(OBJECTIVES) == set(ObjectiveWeights.__dataclass_fields__)
