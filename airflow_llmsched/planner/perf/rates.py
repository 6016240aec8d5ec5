"""What an accelerator and its links really reach, as few physical numbers: the value that calibration fits. Pure.

A kind of accelerator has one set. Before anything was measured on it, that is the prior of its generation; measured
steps move it from there (``data/rates.toml`` has the priors, ``calibration`` what was fitted). Nothing in it belongs to
a model, a run or a file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from airflow_llmsched.domain.hardware import Accelerator, NumberFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of what the vendor states, and costs that no vendor states. The defaults are those of a recent GPU.

    Attributes:
        matmul_ratio: share of the peak that endless matrix products of 16 bits and more reach.
        narrow_matmul_ratio: the same for formats of 8 bits and fewer.
        matmul_half_depth_size: contracted elements at which a product runs at half of that rate.
        matmul_half_area_size: elements of the result at which it does: below, units stand idle in the last wave.
        attention_ratio: share of the peak that a fused attention kernel reaches, at a head size of 128.
        older_attention_ratio: share of that rate which fused kernels not written for this generation reach.
        memory_ratio: share of the memory's bandwidth that sweeps over large tensors reach.
        kernel_s: seconds between two kernels on the device.
        host_kernel_s: seconds that the host takes to launch one kernel; the device waits when it runs dry.
        node_link_ratio: share of the bandwidth inside a node (or scale-up domain) that collectives reach.
        network_ratio: the same between nodes.
        latency_ratio: hops of collectives take that many times what the shape states.
        hidden_ratio: share of the time of computation beside which traffic can really be hidden.
        contention_ratio: seconds that computation loses to each second of traffic hidden beside it.
        jitter_ratio: standard deviation of what one rank computes in a step, as a share of its mean.
    """

    matmul_ratio: float = 0.8
    narrow_matmul_ratio: float = 0.7
    matmul_half_depth_size: float = 200.0
    matmul_half_area_size: float = 1.5e6
    attention_ratio: float = 0.55
    older_attention_ratio: float = 0.5
    memory_ratio: float = 0.7
    kernel_s: float = 2e-6
    host_kernel_s: float = 3e-5
    node_link_ratio: float = 0.7
    network_ratio: float = 0.85
    latency_ratio: float = 1.0
    hidden_ratio: float = 0.9
    contention_ratio: float = 0.15
    jitter_ratio: float = 0.005

    def __post_init__(self) -> None:
        """Refuse what no hardware can have. Raises ``ValueError``."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (field.name in AT_MOST_ONE and value > 1):
                raise ValueError(f"{field.name}={value}: a rate is positive, and a share at most 1")

    def changed(self, values: Mapping[str, float]) -> Rates:
        """Return a copy with some numbers replaced. Raises ``TypeError`` for an unknown name."""
        return replace(self, **values)


AT_MOST_ONE = frozenset({
    "matmul_ratio", "narrow_matmul_ratio", "attention_ratio", "older_attention_ratio", "memory_ratio",
    "node_link_ratio", "network_ratio", "hidden_ratio", "contention_ratio", "jitter_ratio",
})  # fmt: skip

POWER_EXPONENT = 0.8
"""Between 1, where energy per operation is fixed, and 1/2 to 1/3, where lower clocks allow lower voltages.

At the same peaks and 1.17 of its power GB300 does 1.19 of GB200's work (Megatron-Bridge 25.11, Llama 3 8B in FP8).
"""

LOG_SPREAD: Mapping[str, float] = MappingProxyType({
    "matmul_ratio": 0.1,
    "narrow_matmul_ratio": 0.15,
    "matmul_half_depth_size": 0.5,
    "matmul_half_area_size": 0.3,
    "attention_ratio": 0.2,
    "older_attention_ratio": 0.2,
    "memory_ratio": 0.15,
    "kernel_s": 0.5,
    "host_kernel_s": 0.7,
    "node_link_ratio": 0.06,
    "network_ratio": 0.15,
    "latency_ratio": 0.5,
    "hidden_ratio": 0.2,
    "contention_ratio": 0.5,
    "jitter_ratio": 0.5,
})  # fmt: skip
"""Standard deviation of each number's logarithm in the prior: how far few measurements may move it.

Links and tiles are known best: nccl-tests publishes what collectives reach, and tile sizes and their number follow from
the chip."""


def generation_of(accelerator: Accelerator) -> str:
    """Return which kinds an accelerator is like; one that nobody knows is like no other."""
    generation: str = _table()["generation"].get(accelerator.name, accelerator.name)
    return generation


def prior_of_generation(generation: str) -> Rates:
    """Return what is expected of a generation before it was measured."""
    prior = _table()["prior"].get(generation)
    return Rates(**prior["rates"]) if prior else Rates()


def clock_ratio(accelerator: Accelerator) -> float:
    """Return how fast a kind clocks under load, relative to the member of its generation that its rates hold for.

    Products draw all the power that a board may, so of two kinds with one peak the one with more power reaches more of
    it: by the power :data:`POWER_EXPONENT` of watts per operation of the 16-bit peak. 1 where nobody states either.
    """
    prior = _table()["prior"].get(generation_of(accelerator), {})
    peak = accelerator.peak_flop_per_s.get(NumberFormat.BF16) or accelerator.peak_flop_per_s.get(NumberFormat.FP16)
    if "rated_j_per_flop" not in prior or not accelerator.power_limit_w or not peak:
        return 1.0
    ratio: float = accelerator.power_limit_w / peak / prior["rated_j_per_flop"]
    return float(ratio**POWER_EXPONENT)


def attention_speedup(accelerator: Accelerator) -> float:
    """Return how much faster a kind does fused attention than its generation: half of it waits for exponentials."""
    units: float = _table()["exponential"].get(accelerator.name, 1.0)
    return 2 / (1 + 1 / units)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files(f"{__package__}.data").joinpath("rates.toml").read_text("utf-8"))
