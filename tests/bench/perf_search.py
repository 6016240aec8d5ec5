"""Rows of ``make bench-perf`` about the search's speed. Each figure is measured in a process of its own.

``python -m tests.bench.perf_search CASE`` measures one and prints it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from airflow_llmsched.domain.layout import Offload
from airflow_llmsched.domain.workload import CapacityWish, ModelShape, WorkloadSpec
from airflow_llmsched.planner.evaluate import step_seconds, total_memory_bytes, total_s
from airflow_llmsched.planner.layouts import legal_layouts
from airflow_llmsched.planner.perf.hardware import node_shape, node_shapes
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.planner.sift import BLOCK_SIZE
from airflow_llmsched.specs import presets
from airflow_llmsched.units import GIB
from tests.bench.rows import Row
from tests.support.fleets import fleet, workload
from tests.support.models import megatron_gpt

SHAPE = "p5.48xlarge"
SLOTS_PER_NODE = 8
NUM_CORES = 2
CALCULON_PER_S = 200.0
"""Candidates that Calculon evaluates in a second on one core, by the contract's table."""

Measured = Mapping[str, float]


def rows() -> Sequence[Row]:
    few, many = _measured("evaluate-175b", num_cores=1), _measured("evaluate-405b", num_cores=1)
    return [
        *_evaluation_rows("175B on 64 GPUs", few),
        *_evaluation_rows("405B on 16,384 GPUs", many),
        *_search_rows("405B on 16,384 H100", _measured("search-405b", num_cores=NUM_CORES)),
        *_search_rows("1T MoE on 8,192 H100", _measured("search-1t", num_cores=NUM_CORES)),
    ]


def evaluate_all(run: WorkloadSpec, *, world_size: int) -> Measured:
    """Price every legal layout, offloads included, whether or not it fits."""
    shape = node_shape(SHAPE)
    began_s = time.perf_counter()
    space = legal_layouts(run, world_sizes=[world_size], slots_per_node=SLOTS_PER_NODE, offloads=tuple(Offload))
    num_policies = len(space.policies)
    num_fit, fastest_s = 0, np.inf
    for start in range(0, len(space), BLOCK_SIZE):
        layout_C = np.arange(start, min(start + BLOCK_SIZE, len(space)))
        table = space.expand(layout_C // num_policies, layout_C % num_policies)
        machine = Machine(shape=shape, ranks_per_node_C=np.full(len(table), SLOTS_PER_NODE))
        fits_C = total_memory_bytes(run, table, shape) <= shape.accelerator.memory_bytes
        step_s_C = total_s(step_seconds(run, table, machine), table)
        num_fit += int(np.count_nonzero(fits_C))
        fastest_s = min(fastest_s, float(step_s_C[fits_C].min(initial=np.inf)))
    seconds = time.perf_counter() - began_s
    return {"candidates": len(space), "seconds": seconds, "fit": num_fit, "step_s": fastest_s}


def search_whole(run: WorkloadSpec, *, world_size: int) -> Measured:
    """Search on a fleet of that size, placement and Pareto set included."""
    wish = CapacityWish(min_ranks=world_size, max_ranks=world_size)
    asked, shapes, solver = replace(run, capacity=wish), node_shapes(), BestFitSolver()
    tree = fleet(world_size // SLOTS_PER_NODE, nodes_per_rack=32, racks_per_block=8)
    before_bytes, began_s = _peak_rss_bytes(), time.perf_counter()
    found = search(asked, tree, shapes, solver=solver)
    seconds = time.perf_counter() - began_s
    return {
        "candidates": found.num_candidates,
        "seconds": seconds,
        "gib": (_peak_rss_bytes() - before_bytes) / GIB,
        "step_s": found.plans[0].prediction.step_s,
    }


def _evaluation_rows(name: str, measured: Measured) -> Sequence[Row]:
    rate = measured["candidates"] / measured["seconds"]
    return [
        Row(name=f"{name}: legal layouts evaluated", value=measured["candidates"], above=1e6),
        Row(name=f"{name}: seconds for all, one core", value=measured["seconds"], unit="s", below=5),
        Row(name=f"{name}: layouts per second", value=rate, unit="/s", reference={"Calculon": CALCULON_PER_S}),
    ]


def _search_rows(name: str, measured: Measured) -> Sequence[Row]:
    return [
        Row(name=f"{name}: full search, {NUM_CORES} cores", value=measured["seconds"], unit="s", below=2),
        Row(name=f"{name}: memory grown", value=measured["gib"], unit="GiB", below=1),
        Row(name=f"{name}: candidates searched", value=measured["candidates"]),
    ]


def _measured(case: str, *, num_cores: int) -> Measured:
    """Measure in a new process: with nothing in its caches, and numpy's threads kept to one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.bench.perf_search", case, str(num_cores)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _peak_rss_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def _run(model: ModelShape, *, sequence_length_tokens: int, num_sequences: int) -> WorkloadSpec:
    return workload(model, sequence_length_tokens=sequence_length_tokens, num_sequences=num_sequences)


def _gpt_175b() -> WorkloadSpec:
    model = megatron_gpt(name="gpt3-175b", num_heads=96, hidden_size=12288, num_layers=96)
    return _run(model, sequence_length_tokens=2048, num_sequences=1536)


def _llama_405b() -> WorkloadSpec:
    """Batch of Dubey et al. (2024), table 4: 16 M tokens."""
    return _run(presets.get("llama-3.1-405b").shape, sequence_length_tokens=8192, num_sequences=2048)


def _moe_1t() -> WorkloadSpec:
    """Batch of Kimi K2 (2025), section 2.5: 67 M tokens of sequences of 4,096."""
    return _run(presets.get("kimi-k2").shape, sequence_length_tokens=4096, num_sequences=16384)


CASES: Mapping[str, Callable[[], Measured]] = {
    "evaluate-175b": lambda: evaluate_all(_gpt_175b(), world_size=64),
    "evaluate-405b": lambda: evaluate_all(_llama_405b(), world_size=16384),
    "search-405b": lambda: search_whole(_llama_405b(), world_size=16384),
    "search-1t": lambda: search_whole(_moe_1t(), world_size=8192),
}


if __name__ == "__main__":
    cores = sorted(os.sched_getaffinity(0))[: int(sys.argv[2])]
    os.sched_setaffinity(0, cores)
    sys.stdout.write(json.dumps(CASES[sys.argv[1]]()))
