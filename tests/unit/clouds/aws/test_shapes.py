from __future__ import annotations

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from airflow_llmsched.clouds.aws.shapes import NetworkCard, read_shape


@pytest.mark.parametrize(
    ("name", "num_accelerators", "vendor", "num_efa"),
    [
        ("p4d.24xlarge", 8, "nvidia", 4),
        ("p5.48xlarge", 8, "nvidia", 32),
        ("p6-b200.48xlarge", 8, "nvidia", 8),
        ("trn1.32xlarge", 16, "aws", 8),
        ("g5.xlarge", 1, "nvidia", 0),
        ("m5.large", 1, "intel", 0),
    ],
)
def test_facts_are_those_that_ec2_lists(name: str, num_accelerators: int, vendor: str, num_efa: int) -> None:
    shape = read_shape({**INSTANCE_TYPES[name], "InstanceType": name})
    assert (shape.name, shape.num_accelerators, shape.vendor) == (name, num_accelerators, vendor)
    assert shape.can_cluster
    assert [card.index for card in shape.efa_cards] == list(range(num_efa))
    assert all(card.takes_efa_only for card in shape.efa_cards)


def test_a_type_with_efa_and_no_list_of_cards_has_one() -> None:
    row = {"InstanceType": "x", "VCpuInfo": {"DefaultVCpus": 4}, "NetworkInfo": {"EfaSupported": True}}
    shape = read_shape(row)
    assert shape.efa_cards == (NetworkCard(index=0),)
    assert not shape.can_cluster
    assert (shape.num_accelerators, shape.vendor) == (1, "")
