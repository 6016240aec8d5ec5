"""A step that somebody timed, as the cost model sees it: what calibration reads and what predictions are scored by."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.perf.job import TransformerJob


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One measurement and the set-up it belongs to.

    Attributes:
        source: a file of measurements, or a run key.
        row: line or attempt within the source.
        job: what was trained, and by what software.
        layout: how it was split.
        shape: the machine, with the links it really had.
        ranks_per_node: accelerators used on each node.
        step_s: seconds of one optimizer step.
    """

    source: str
    row: int
    job: TransformerJob
    layout: ParallelLayout
    shape: NodeShape
    ranks_per_node: int
    step_s: float

    @property
    def num_ranks(self) -> int:
        """Accelerators that took part."""
        return self.layout.world_size

    @property
    def setup(self) -> Hashable:
        """What was measured, whoever did: releases of a trainer publish the same set-up again and again."""
        network_bytes_per_s = self.shape.inter_node_bandwidth_bytes_per_s
        return self.job, self.layout, self.shape.name, network_bytes_per_s, self.ranks_per_node
