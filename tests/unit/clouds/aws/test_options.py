from __future__ import annotations

import pytest

from airflow_llmsched.clouds.aws.options import AwsOptions, read_options
from airflow_llmsched.errors import SpecError

LEAST = {"regions": ["us-east-1"], "image": "ami-1"}


def test_options_come_as_json_does() -> None:
    options = read_options({**LEAST, "security_group_ids": {"us-east-1": ["sg-1"]}, "reservation_ids": ["cr-1"]})
    assert isinstance(options, AwsOptions)
    assert options.regions == ("us-east-1",)
    assert options.security_group_ids == {"us-east-1": ("sg-1",)}
    assert options.reservation_ids == ("cr-1",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**LEAST, "subnet": "subnet-1"}, "subnet: is no option"),
        ({**LEAST, "efa": "perhaps"}, "efa"),
        ({"image": "ami-1"}, "regions"),
        ({**LEAST, "regions": []}, "regions"),
        ({**LEAST, "root_device": "/dev/xvda"}, "root_volume_size_gib"),
        ({**LEAST, "min_placement_score": 11}, "min_placement_score"),
        ({**LEAST, "user_data": "echo"}, "user_data"),
    ],
)
def test_an_option_that_is_wrong_is_named(given: dict, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_options(given)


def test_an_image_is_one_for_all_regions_or_each_region_s_own() -> None:
    assert read_options(LEAST).image_in("eu-west-1") == "ami-1"
    by_region = read_options({**LEAST, "image": {"us-east-1": "ami-2"}})
    assert by_region.image_in("us-east-1") == "ami-2"
    with pytest.raises(SpecError, match="eu-west-1"):
        by_region.image_in("eu-west-1")
