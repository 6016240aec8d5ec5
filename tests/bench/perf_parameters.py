"""Rows of ``make bench-perf`` about model shapes: published configurations whose parameters must come out exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs.hf_config.reader import to_shape
from tests.bench.rows import Row

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "hf_configs.json"


def rows(path: Path = CONFIGS) -> Sequence[Row]:
    models = json.loads(path.read_text("utf-8"))["models"]
    wrong = [model["model"] for model in models if not _is_right(model)]
    name = f"models whose parameters are exact, of {len(models)}" + f" (not: {', '.join(wrong)})" * bool(wrong)
    return [Row(name=name, value=len(models) - len(wrong), above=len(models) - 0.5)]


def _is_right(model: Mapping[str, Any]) -> bool:
    try:
        counted = count_parameters(to_shape(model["config"], name=model["model"], file=model["model"]))
    except SpecError:
        return False
    expected_active = model["expected_active_params"]
    return counted.total == model["expected_total_params"] and expected_active in {None, counted.active}
