from __future__ import annotations

import pytest

from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.topology.accelerators import _SHAPES, INSTANCE_TYPE, RESOURCES, shape_of

PRODUCT = "nvidia.com/gpu.product"


@pytest.mark.parametrize(
    ("labels", "num_slots", "shape"),
    [
        ({INSTANCE_TYPE: "p5.48xlarge", PRODUCT: "NVIDIA-H100-80GB-HBM3"}, 8, "p5.48xlarge"),
        ({INSTANCE_TYPE: "k3s", PRODUCT: "NVIDIA-H100-80GB-HBM3"}, 8, "hgx-h100"),
        ({PRODUCT: "NVIDIA-GB200"}, 4, "gb200-nvl72"),
        ({PRODUCT: "Tesla-V100-SXM2-32GB"}, 8, "dgx-1-v100"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, 8, "mi300x-8x"),
        ({PRODUCT: "NVIDIA-H100-80GB-HBM3"}, 2, "2xNVIDIA-H100-80GB-HBM3"),
        ({INSTANCE_TYPE: "own-type", PRODUCT: "NVIDIA-L4"}, 1, "own-type"),
        ({}, 8, "8xnvidia.com/gpu"),
        (
            {INSTANCE_TYPE: "p5.48xlarge", PRODUCT: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
            56,
            "56xNVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        ),
        (
            {INSTANCE_TYPE: "p5.48xlarge", PRODUCT: "NVIDIA-H100-80GB-HBM3-SHARED"},
            32,
            "32xNVIDIA-H100-80GB-HBM3-SHARED",
        ),
        ({INSTANCE_TYPE: "p5.48xlarge", "nvidia.com/gpu.replicas": "4"}, 32, "32xnvidia.com/gpu"),
        ({INSTANCE_TYPE: "p5.48xlarge", "nvidia.com/gpu.replicas": "1"}, 8, "p5.48xlarge"),
    ],
)
def test_the_shape_is_what_plans_know_else_what_is_there(labels: dict[str, str], num_slots: int, shape: str) -> None:
    assert shape_of(labels, resource=RESOURCES[0], num_slots=num_slots) == shape


@pytest.mark.parametrize("resource", ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"])
def test_a_part_of_an_accelerator_is_never_taken_for_a_whole_one(resource: str) -> None:
    labels = {INSTANCE_TYPE: "p5.48xlarge", PRODUCT: "NVIDIA-H100-80GB-HBM3"}
    assert shape_of(labels, resource=resource, num_slots=8) == f"8x{resource}"
    assert shape_of(labels, resource="nvidia.com/gpu-h100", num_slots=8) == "p5.48xlarge", "whole, by another name"


def test_every_shape_that_labels_can_tell_is_known_with_as_many_accelerators() -> None:
    for (_, number), shape in _SHAPES.items():
        assert node_shapes()[shape].num_accelerators == number, shape
