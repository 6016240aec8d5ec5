from __future__ import annotations

import pytest

from tests.bench.perf_search import CALCULON_PER_S, evaluate_all, rows, search_whole
from tests.support.fleets import workload
from tests.support.models import LLAMA31_8B, MIXTRAL_8X7B


@pytest.mark.parametrize("model", [LLAMA31_8B, MIXTRAL_8X7B])
def test_the_search_finds_the_fastest_of_all_layouts_without_pricing_them_all(model) -> None:
    run = workload(model, sequence_length_tokens=2048, num_sequences=32)
    everything, found = evaluate_all(run, world_size=16), search_whole(run, world_size=16)
    assert found["candidates"] > 10_000
    assert everything["fit"] < everything["candidates"]
    # A plan leaves some memory free, and offloads nothing.
    assert found["step_s"] >= everything["step_s"] * (1 - 1e-9)
    assert found["step_s"] == pytest.approx(everything["step_s"], rel=0.05)


def test_each_row_of_the_contract_is_measured() -> None:
    measured = {row.name: row for row in rows()}
    barred = {name for name, row in measured.items() if row.above is not None or row.below is not None}
    assert len(barred) == 8
    assert all(row.reached for name, row in measured.items() if "evaluated" in name or "memory" in name)
    assert measured["1T MoE on 8,192 H100: memory grown"].value < 1
    assert measured["175B on 64 GPUs: layouts per second"].value > CALCULON_PER_S
