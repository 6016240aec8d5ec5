from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from airflow_llmsched.domain.software import AttentionKernel, LossKernel, Software
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.specs.software_schema import SoftwareBlock
from tests.support.specs import load_small


def test_all_that_plans_reckon_with_can_be_said_and_means_by_default_what_the_domain_means() -> None:
    assert set(SoftwareBlock.model_fields) == {each.name for each in fields(Software)}
    assert SoftwareBlock().model_dump() == asdict(Software())
    assert load_small().software == Software()


def test_what_a_spec_says_of_its_software_reaches_the_job_that_is_priced() -> None:
    said = {"fused_elementwise": True, "loss": "fused", "attention_kernel": "flash_2", "expert_load_ratio": 1.25}
    job = job_of(load_small({"software": said}))
    assert job is not None
    assert job.software == Software(
        fused_elementwise=True,
        loss=LossKernel.FUSED,
        attention_kernel=AttentionKernel.FLASH_2,
        expert_load_ratio=1.25,
    )


def test_the_fullest_experts_never_have_less_than_the_average() -> None:
    with pytest.raises(SpecError, match=r"software\.expert_load_ratio"):
        load_small({"software.expert_load_ratio": 0.9})
