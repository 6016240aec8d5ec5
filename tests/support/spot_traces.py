"""The reference traces of spot availability in ``../shared/data``: local use only, never shipped.

SkyPilot's public traces (Wu et al., NSDI 2024): 1 is available. The set of 10-26-2022 declares 600 s between samples,
but its length fits 300 s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray

TRACES = Path(__file__).parents[3] / "shared" / "data" / "spot_traces" / "availability" / "1-node"
_TRUE_TICK_S = {"aws-10-26-2022": 300.0}


@dataclass(frozen=True, slots=True, eq=False)
class SpotTrace:
    """One zone: ``folder`` names the set it was watched in, ``kind`` the machine."""

    folder: str
    zone: str
    kind: str
    tick_s: float
    up: BoolArray

    @property
    def num_losses(self) -> int:
        return int((self.up[:-1] & ~self.up[1:]).sum())


def spot_traces() -> list[SpotTrace]:
    """Return every trace, in order of its name."""
    return [_read(path) for path in sorted(TRACES.glob("*/*.json"))]


def _read(path: Path) -> SpotTrace:
    recorded = json.loads(path.read_text())
    zone, kind = path.stem.split("_", 1)
    tick_s = _TRUE_TICK_S.get(path.parent.name, float(recorded["metadata"]["gap_seconds"]))
    return SpotTrace(path.parent.name, zone, kind, tick_s, np.array(recorded["data"], dtype=np.int64) > 0)
