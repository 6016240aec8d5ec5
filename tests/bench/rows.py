"""What every benchmark ends with: one table with the reference beside ours, a JSON file, and an exit code."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parents[2] / "bench" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, what it must stay above or below, if anything, and references measured in the same run."""

    name: str
    value: float
    unit: str = ""
    above: float | None = None
    below: float | None = None
    reference: Mapping[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """Whether the figure is on the right side of each bar."""
        # bool: comparing NumPy's numbers gives NumPy's truth, which JSON does not know
        return bool((self.above is None or self.value > self.above) and (self.below is None or self.value < self.below))

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, figure, bar, references and verdict as text."""
        bars = [f"{sign} {bar:.6g}" for sign, bar in ((">", self.above), ("<", self.below)) if bar is not None]
        beside = ", ".join(f"{name} {value:.4g}" for name, value in self.reference.items())
        verdict = "" if not bars else ("ok" if self.reached else "MISSED")
        return self.name, f"{self.value:.6g} {self.unit}".rstrip(), " and ".join(bars), beside, verdict


def conclude(rows: Sequence[Row], *, title: str, output: Path, about: Mapping[str, Any]) -> int:
    """Print the table, write it to ``output`` with what is said ``about`` the run; return 1 if a bar was missed."""
    table = Table(title=title)
    for column, justify in (("figure", "left"), ("ours", "right"), ("bar", "right"), ("beside", "left"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row.cells)
    Console(width=150).print(table)
    stored = {
        **about,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "rows": [{**asdict(row), "reached": bool(row.reached)} for row in rows],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(stored, indent=2, default=float) + "\n")
    missed = [row.name for row in rows if not row.reached]
    if missed:
        Console(stderr=True).print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0
