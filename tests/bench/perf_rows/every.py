"""All files of measured steps, each with its reader. ``python -m tests.bench.perf_rows.every`` prints what was read."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.bench.perf_rows import (
    bridge,
    dgxc,
    maxtext,
    megatron_tables,
    mlperf,
    mosaic,
    nemo,
    torchtitan,
    vtrain,
)
from tests.bench.perf_rows.reading import Reading

READERS = (
    vtrain.single,
    vtrain.multi,
    mosaic.read,
    megatron_tables.read,
    bridge.read,
    dgxc.read,
    mlperf.read,
    torchtitan.read,
    nemo.read,
    maxtext.read,
)


def read_all() -> Sequence[Reading]:
    return [read() for read in READERS]


def show(readings: Sequence[Reading]) -> None:
    table = Table(title="Measured steps")
    for column in ("file", "rows", "read", "left out"):
        table.add_column(column)
    for reading in readings:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(reading.left_out.items()))
        table.add_row(reading.file, str(reading.num_rows), str(len(reading.steps)), reasons)
    Console(width=150).print(table)


if __name__ == "__main__":
    show(read_all())
