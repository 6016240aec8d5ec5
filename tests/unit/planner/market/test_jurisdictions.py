from __future__ import annotations

import pytest

from airflow_llmsched.planner.market.jurisdictions import jurisdiction_of


@pytest.mark.parametrize(
    ("cloud", "region", "code"),
    [
        ("aws", "us-east-1", "US"),
        ("aws", "eu-central-1", "EU"),
        ("aws", "eu-west-2", "GB"),  # London is in no union
        ("aws", "eu-central-2", "CH"),
        ("aws", "ap-south-2", "IN"),
        ("aws", "ap-southeast-2", "AU"),
        ("gcp", "europe-west4", "EU"),
        ("gcp", "europe-west2", "GB"),
        ("gcp", "europe-west12", "EU"),
        ("gcp", "asia-south1", "IN"),
        ("gcp", "asia-southeast1", "SG"),
        ("azure", "eastus2", "US"),
        ("azure", "uksouth", "GB"),
        ("azure", "centralindia", "IN"),
        ("azure", "centralus", "US"),
    ],
)
def test_region_lies_under_the_law_of_its_place(cloud: str, region: str, code: str) -> None:
    assert jurisdiction_of(cloud, region) == code


@pytest.mark.parametrize(("cloud", "region"), [("aws", "moon-1"), ("lambda", "us-east-1"), ("aws", "")])
def test_what_is_not_known_is_under_none(cloud: str, region: str) -> None:
    assert jurisdiction_of(cloud, region) == ""
