"""Checks that a device computes right, and how fast: a product whose every sum is exact, whatever its order.

Entries are whole numbers up to 8, so that sums of 1,024 products stay below 2**24, where 32-bit floating point (and the
shorter forms that a device may multiply in) still holds each of them. The product is then checked by Freivalds' method
(1977): C v = A (B v) for a random v, in 64 bit on the host, fails for a wrong C with probability above 1/2 each time.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from airflow_llmsched.trainers.preflight.words import bad, ok

SIZE = 1024
NUM_PROBES = 8
_LIMIT_S = 0.3


def check_compute(device: torch.device, *, seed: int) -> dict[str, Any]:
    """Multiply for a fraction of a second; one wrong number is bad. The value is FLOP/s."""
    name = "compute"
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randint(-8, 9, (SIZE, SIZE), generator=generator).float() for _ in range(2))
    on_left, on_right = left.to(device), right.to(device)
    product = on_left @ on_right  # the first one loads the library
    started_s, num_done = time.perf_counter(), 0
    while num_done < 1 or time.perf_counter() - started_s < _LIMIT_S:
        product = on_left @ on_right
        _finish(device)
        num_done += 1
    rate = 2.0 * SIZE**3 * num_done / (time.perf_counter() - started_s)
    if not is_product(product.cpu(), left, right, generator=generator):
        return bad(name, f"{device} multiplies wrong", value=rate, unit="FLOP/s")
    return ok(name, value=rate, unit="FLOP/s")


def is_product(product: Tensor, left: Tensor, right: Tensor, *, generator: torch.Generator) -> bool:
    """Whether ``product`` is that of whole-number matrices [n, n]; a wrong one passes once in 2**NUM_PROBES."""
    probes = torch.randint(0, 2, (right.shape[1], NUM_PROBES), generator=generator).double()
    return bool(torch.equal(product.double() @ probes, left.double() @ (right.double() @ probes)))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
