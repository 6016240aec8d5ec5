"""How fast a step's input can be there: from storage, through loaders and the host's memory, to the accelerator. Pure.

Axis: C = candidate layout. A step is no shorter than the slowest part of that way, all of which runs at once and ahead
of the step where the trainer prefetches. Each rank reads the tokens that it trains on, ranks that split a layer or the
layers the same ones: all of a node's ranks together share its storage link, its memory and its links to accelerators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape, TierKind, Transport
from airflow_llmsched.planner.layout_table import FloatArray, LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.machine import Machine

LOADER_BYTES_PER_S = 100e6
"""Packed tokens that one loader process cuts into sequences and collates. An assumption, low for files in memory."""

REMOTE_MEMORY_RATIO = 0.6
"""Bandwidth to the memory of another processor as share of one's own (Xeon and EPYC with two sockets: 0.5 to 0.7)."""


def input_bytes_per_rank(job: TransformerJob, table: LayoutTable) -> FloatArray:
    """Return the bytes of token numbers that a rank reads for a step: as narrow as the vocabulary allows."""
    size = 1 if job.model.vocab_size <= 1 << 8 else 2 if job.model.vocab_size <= 1 << 16 else 4
    return np.asarray(size * job.tokens_per_step / (table.dp_C * table.cp_C), dtype=np.float64)


def loading_s(
    job: TransformerJob, table: LayoutTable, machine: Machine, *, offloaded_s: FloatArray, network_s: FloatArray
) -> FloatArray:
    """Return the seconds that a step's input takes on the slowest part of its way. What nobody states takes none.

    Args:
        job: What is trained.
        table: The candidates.
        machine: Where they run.
        offloaded_s: how long offload moves bytes over the link to the host, which is not free for input meanwhile.
        network_s: the same for other nodes. It needs that link only where the host moves the bytes of its network.
    """
    num_bytes = input_bytes_per_rank(job, table)
    shape, loaders = machine.shape, job.num_loaders
    loaders_per_rank = 1.0 if loaders is None else loaders / table.world_size_C
    parts = [num_bytes / (LOADER_BYTES_PER_S * loaders_per_rank)]
    storage = shape.memory_tiers.get(TierKind.OBJECT_STORE)
    if storage is not None:
        parts.append(num_bytes / storage.read_bytes_per_s)
    link_bytes_per_s = host_link_bytes_per_s(shape, is_bound=job.software.binds_processes)
    if link_bytes_per_s:
        parts.append(num_bytes / link_bytes_per_s)
        if job.software.prefetches_input:
            parts[-1] = parts[-1] + offloaded_s + _through_host_s(shape, network_s, link_bytes_per_s)
    return np.asarray(reduce(np.maximum, parts))


def exposed_loading_s(job: TransformerJob, load_s: FloatArray, terms_s: Mapping[str, FloatArray]) -> FloatArray:
    """Return what a step waits for its input, which is read beside all ``terms_s`` of the step before, or not."""
    if not job.software.prefetches_input:
        return load_s
    waited_s = np.zeros_like(load_s)
    if (load_s > terms_s["matmul"]).any():
        rest_s = np.sum(list(terms_s.values()), axis=0)
        np.subtract(load_s, rest_s, out=waited_s, where=load_s > rest_s)
    return waited_s


def host_link_bytes_per_s(shape: NodeShape, *, is_bound: bool) -> float:
    """Return the one-way rate between one accelerator and host memory when all move at once; 0: nobody states it.

    Processes that are not bound to the processor next to their accelerator have their memory on any, and most of it is
    remote where there are many.
    """
    tier = shape.memory_tiers.get(TierKind.HOST_DRAM)
    if tier is None:
        return 0.0
    remote_share = 0.0 if is_bound else 1 - 1 / shape.host.num_numa_nodes
    return tier.read_bytes_per_s / (1 - remote_share + remote_share / REMOTE_MEMORY_RATIO)


def _through_host_s(shape: NodeShape, network_s: FloatArray, link_bytes_per_s: float) -> FloatArray:
    """Return how long network traffic keeps the link to the host busy: cards move their own past it (RDMA)."""
    if shape.inter_node.transport is not Transport.HOST:
        return np.zeros_like(network_s)
    return np.asarray(network_s * shape.inter_node_bandwidth_bytes_per_s / link_bytes_per_s)
