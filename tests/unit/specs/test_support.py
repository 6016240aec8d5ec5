"""What a spec may say but no engine can do yet is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.workload import CapacityType, CapacityWish, WorkloadSpec
from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.specs.support import require_supported, unsupported
from tests.support.specs import load_small


@pytest.fixture
def spec() -> WorkloadSpec:
    return load_small()


def test_what_can_be_done_passes(spec: WorkloadSpec) -> None:
    loader = RoleSpec(kind=RoleKind.DATA_LOADER, num_ranks=2, command=("load",))
    assert unsupported(replace(spec, roles=(RoleSpec(kind=RoleKind.TRAINER), loader))) == ()
    require_supported(spec)


@pytest.mark.parametrize(
    ("part", "changes", "path"),
    [
        ("data", {"source": "s3://bucket/x"}, "data.source"),
        ("checkpoint", {"root": "gs://bucket/x"}, "checkpoint.root"),
        ("checkpoint", {"init_from": "s3://bucket/step-5"}, "checkpoint.init_from"),
    ],
)
def test_a_bucket_is_refused_before_a_task_meets_it(
    spec: WorkloadSpec, part: str, changes: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError, match="mount it") as caught:
        require_supported(replace(spec, **{part: replace(getattr(spec, part), **changes)}))
    assert caught.value.path == path


def test_filters_that_would_not_be_heeded_are_refused_all_at_once(spec: WorkloadSpec) -> None:
    wish = CapacityWish(jurisdictions=("eu",), capacity_types=(CapacityType.SPOT,))
    with pytest.raises(SpecErrors) as caught:
        require_supported(replace(spec, capacity=wish))
    assert [error.path for error in caught.value.errors] == ["capacity.jurisdictions", "capacity.capacity_types"]


def test_a_fleet_heeds_regions_and_jurisdictions_and_no_other_filter(spec: WorkloadSpec) -> None:
    wish = CapacityWish(regions=("north",), jurisdictions=("eu",))
    require_supported(replace(spec, capacity=wish), chooses_cluster=True)
    spot = replace(wish, capacity_types=(CapacityType.SPOT,))
    with pytest.raises(SpecError) as caught:
        require_supported(replace(spec, capacity=spot), chooses_cluster=True)
    assert caught.value.path == "capacity.capacity_types"


def test_filters_that_a_task_heeds_are_not(spec: WorkloadSpec) -> None:
    wish = CapacityWish(jurisdictions=("eu",), capacity_types=(CapacityType.SPOT,))
    require_supported(replace(spec, capacity=wish), rents_capacity=True)
    with pytest.raises(SpecError, match="mount it"):
        require_supported(replace(spec, data=replace(spec.data, source="s3://b/x")), rents_capacity=True)
