"""Checks of the links between nodes: pairs of neighbours first, so that a bad node is told from its partners.

One rank of each node exchanges a buffer with that of the next node, and of the one before, in two rounds in which no
node has two partners. A node whose every exchange fails is at fault; one that fails with one partner only is not. All
ranks then add up a buffer together, whose sum is known.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from airflow_llmsched.trainers.preflight.words import bad, ok, skipped

Pair = tuple[int, int]

NAME = "node_links"
SUM = "collective"

SUM_FACTOR_OF_GPUS = 16
"""GPUs add up so many times what pairs exchange: in less, a fast network hardly comes to speed."""


def pairs_of(num_nodes: int) -> list[list[Pair]]:
    """Return rounds of pairs of nodes, by index: around a ring, each node with the next and with the one before."""
    if num_nodes < 2:
        return []
    even = [(node, node + 1) for node in range(0, num_nodes - 1, 2)]
    if num_nodes == 2:
        return [even]
    odd = [(node, node + 1) for node in range(1, num_nodes - 1, 2)]
    if num_nodes % 2 == 0:
        return [even, [*odd, (num_nodes - 1, 0)]]
    return [even, odd, [(num_nodes - 1, 0)]]


def exchange(peer: int, *, num_bytes: int, limit_s: float, device: torch.device) -> float | str:
    """Send a buffer to rank ``peer`` while it sends one; return bytes/s each way, or what went wrong in words."""
    own = torch.full((max(1, num_bytes // 4),), float(distributed.get_rank() + 1), device=device)
    other = torch.empty_like(own)
    limit = datetime.timedelta(seconds=limit_s)
    took_s = 0.0
    try:
        for _ in range(2):  # the first one sets the connection up
            started_s = time.perf_counter()
            operations = [
                distributed.P2POp(distributed.isend, own, peer),
                distributed.P2POp(distributed.irecv, other, peer),
            ]
            for work in distributed.batch_isend_irecv(operations):
                work.wait(limit)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took_s = time.perf_counter() - started_s
    except RuntimeError as error:
        return str(error).splitlines()[0]
    if not bool((other == float(peer + 1)).all()):
        return "what arrived is not what was sent"
    return own.numel() * 4 / max(took_s, 1e-9)


def judge_node(node: int, results: Mapping[Pair, float | str], nodes: Sequence[str]) -> dict[str, Any]:
    """Return the check of one node (by index) from all pairs' results: its best exchange, or why it had none."""
    own = {pair: result for pair, result in results.items() if node in pair}
    if not own:
        return skipped(NAME, "there is one node only")
    rates = [result for result in own.values() if not isinstance(result, str)]
    failures = [
        f"with {nodes[pair[0] if pair[1] == node else pair[1]]}: {result}"
        for pair, result in own.items()
        if isinstance(result, str)
    ]
    if not rates:
        return bad(NAME, "; ".join(failures))
    return ok(NAME, "; ".join(failures), value=max(rates), unit="bytes/s")


def check_sum(*, num_bytes: int, device: torch.device) -> dict[str, Any]:
    """Have all ranks add a buffer up. The value is bytes/s over each rank's links (nccl-tests: bus bandwidth)."""
    num_ranks = distributed.get_world_size()
    if num_ranks == 1:
        return skipped(SUM, "there is one rank only")
    whole = float(num_ranks * (num_ranks + 1) // 2)
    length = max(1, num_bytes // 4) * (SUM_FACTOR_OF_GPUS if device.type == "cuda" else 1)
    rate = 0.0
    try:
        for _ in range(2):
            buffer = torch.full((length,), float(distributed.get_rank() + 1), device=device)
            started_s = time.perf_counter()
            distributed.all_reduce(buffer)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took_s = max(time.perf_counter() - started_s, 1e-9)
            rate = 2 * (num_ranks - 1) / num_ranks * buffer.numel() * 4 / took_s
    except RuntimeError as error:
        return skipped(SUM, f"failed for all: {str(error).splitlines()[0]}")
    if not bool((buffer == whole).all()):
        return bad(SUM, "ranks of this node got a wrong sum", value=rate, unit="bytes/s")
    return ok(SUM, f"{buffer.numel() * 4} bytes over {num_ranks} ranks", value=rate, unit="bytes/s")
