"""What Kubernetes calls accelerators, by vendor: resources that device plugins offer, and labels that say the kind.

Sources, read 2026-11: the README or documentation of each vendor's device plugin, and of NVIDIA's GPU feature discovery
(``nvidia.com/gpu.product``, ``.count``) and AMD's node labeller (``amd.com/gpu.product-name``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from airflow_llmsched.planner.perf.hardware import node_shapes

RESOURCES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
    "aws.amazon.com/neuroncore",
    "huawei.com/Ascend910",
    "huawei.com/ascend-1980",
    "cambricon.com/mlu",
    "hygon.com/dcu",
    "metax-tech.com/gpu",
    "mthreads.com/gpu",
)
"""Each one whole accelerator, but for Neuron's cores, which a plugin may offer beside the devices: the first counts."""

INSTANCE_TYPE = "node.kubernetes.io/instance-type"

_PART = re.compile(r"(?i)\bmig-|\.shared$|-shared$")
"""In names of resources and products: a MIG profile, or slices of time, as the device plugin and GPU feature discovery
of NVIDIA name them (``nvidia.com/mig-1g.10gb``, ``nvidia.com/gpu.shared``; ``...-MIG-1g.10gb``, ``...-SHARED``)."""

_PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")

_SHAPES: Mapping[tuple[str, int], str] = MappingProxyType(
    {
        ("V100-SXM2-32GB", 8): "dgx-1-v100",
        ("V100-SXM3-32GB", 16): "dgx-2",
        ("A100-SXM4-40GB", 8): "dgx-a100-40gb",
        ("A100-SXM4-80GB", 8): "hgx-a100",
        ("H100-80GB-HBM3", 8): "hgx-h100",
        ("H100-NVL", 8): "h100-nvl-8x",
        ("H100-PCIe", 8): "h100-pcie-8x",
        ("H200", 8): "hgx-h200",
        ("H200-NVL", 8): "h200-nvl-8x",
        ("B200", 8): "hgx-b200",
        ("B300-SXM6-AC", 8): "hgx-b300",
        ("GB200", 4): "gb200-nvl72",
        ("GB300", 4): "gb300-nvl72",
        ("AMD_Instinct_MI300X_OAM", 8): "mi300x-8x",
        ("AMD_Instinct_MI325X_OAM", 8): "mi325x-8x",
        ("AMD_Instinct_MI350X_OAM", 8): "mi350x-8x",
        ("AMD_Instinct_MI355X_OAM", 8): "mi355x-8x",
    }
)
"""Shapes of machines of one's own, by what the labels call their accelerators and how many there are."""


def shape_of(labels: Mapping[str, str], *, resource: str, num_slots: int) -> str:
    """Return the node shape that labels tell: the instance type where plans know it, else by kind and number.

    What is known of neither is named by what is there: plans then say that they do not know the shape. So are parts of
    accelerators (MIG, time slices): no plan may take them for whole ones.
    """
    instance_type = labels.get(INSTANCE_TYPE, "")
    product = next((labels[name] for name in _PRODUCT_LABELS if labels.get(name)), "")
    if _PART.search(resource):
        return f"{num_slots}x{resource}"
    if _is_shared(labels, product):
        return f"{num_slots}x{product or resource}"
    if instance_type in node_shapes():
        return instance_type
    bare = product.removeprefix("NVIDIA-").removeprefix("Tesla-")
    return _SHAPES.get((bare, num_slots)) or instance_type or f"{num_slots}x{product or resource}"


def _is_shared(labels: Mapping[str, str], product: str) -> bool:
    """Whether what the plugin calls accelerators are parts of them: MIG's single strategy, time slices, MPS."""
    replicas = labels.get("nvidia.com/gpu.replicas", "1")
    return _PART.search(product) is not None or replicas not in {"", "0", "1"}
