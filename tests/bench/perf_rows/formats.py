"""Number formats by the names that NVIDIA's tables give them."""

from __future__ import annotations

from airflow_llmsched.domain.hardware import NumberFormat
from tests.bench.perf_rows.reading import LeftOutError

_WORDS = {"BF16": "bf16", "FP8": "fp8", "FP8-CS": "fp8", "MXFP8": "fp8", "FP8-MX": "fp8", "NVFP4": "fp4"}
"""Current scaling (CS) and micro-scaled blocks (MX) run at the same rate of the matrix units."""


def number_format(word: str) -> NumberFormat:
    """Return the format of ``FP8-CS (FP8-MX)`` and the like: the first word counts, as does the row's first figure."""
    name = _WORDS[word.split(" ", maxsplit=1)[0]]
    if name not in {known.value for known in NumberFormat}:
        raise LeftOutError(f"number format not described: {name}")
    return NumberFormat(name)
