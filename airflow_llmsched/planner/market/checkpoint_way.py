"""What it takes to bring a run's newest checkpoint to where it is to go on, in time and money. Pure.

It lies in the storage of the region that it was saved in, or was last brought to: so the way back costs as much as the
way there did. A checkpoint that lies in what every region reads is not brought anywhere, and costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_llmsched.domain.capacity import COPY_BYTES_PER_S, Quote
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, TransformerJob
from airflow_llmsched.planner.perf.memory_states import optimizer_bytes_per_parameter
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.units import GB, HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """List prices of bytes that leave a region: for another one of the same cloud, and for another cloud."""

    to_region_usd_per_gb: float
    to_cloud_usd_per_gb: float


EGRESS = {
    "aws": Egress(to_region_usd_per_gb=0.02, to_cloud_usd_per_gb=0.09),
    "azure": Egress(to_region_usd_per_gb=0.02, to_cloud_usd_per_gb=0.087),
    "gcp": Egress(to_region_usd_per_gb=0.02, to_cloud_usd_per_gb=0.12),
}
"""Regions of the US, the first tier, on 2026-11-30, by guides to the clouds' price lists (docs/reference/prices.md).

Between continents it is up to 0.08, and a contract may say less: a run may be told its own. Of a cloud that is not here
the money is left out, and the time counts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A run's checkpoint. ``egress_usd_per_gb`` is what leaving any region costs; None: as ``EGRESS`` has it."""

    num_bytes: int
    bytes_per_s: float = COPY_BYTES_PER_S
    egress_usd_per_gb: float | None = None

    def egress_usd(self, source: str, target: str, *, is_same_cloud: bool) -> float:
        """Return what bringing it from a region to another costs; 0 where nobody knows. Regions: ``cloud/region``."""
        if source == target:
            return 0.0
        usd_per_gb = self.egress_usd_per_gb
        if usd_per_gb is None:
            known = EGRESS.get(source.partition("/")[0], Egress(to_region_usd_per_gb=0.0, to_cloud_usd_per_gb=0.0))
            usd_per_gb = known.to_region_usd_per_gb if is_same_cloud else known.to_cloud_usd_per_gb
        return self.num_bytes / GB * usd_per_gb


def brought(quotes: Iterable[Quote], *, saved: SavedState | None, region: str) -> list[Quote]:
    """Return the quotes with what the way of a checkpoint that lies in ``region`` (``cloud/region``) adds to each.

    As they are without a checkpoint, or where it lies in no region's storage: ``region`` has no slash then.
    """
    cloud, is_in_region, _ = region.partition("/")
    if saved is None or not is_in_region:
        return list(quotes)
    found = []
    for quote in quotes:
        pool = quote.offer.pool
        there = f"{pool.cloud}/{pool.region}"
        stage_s = 0.0 if there == region else saved.num_bytes / saved.bytes_per_s
        found.append(
            replace(
                quote,
                stage_s=quote.stage_s + stage_s,
                finish_at_s=quote.finish_at_s + stage_s,
                compute_usd=quote.compute_usd + quote.num_nodes * quote.usd_per_hour * stage_s / HOUR_S,
                egress_usd=quote.egress_usd + saved.egress_usd(region, there, is_same_cloud=pool.cloud == cloud),
            )
        )
    return found


def checkpoint_bytes(job: TransformerJob) -> int:
    """Return the size of a checkpoint: weights and optimizer state, of LoRA its factors'."""
    model, num_trained = job.model, job.num_trained_parameters
    num_saved = num_trained if job.lora_rank is not None else count_parameters(model).total_with_predict_ahead
    return int(num_saved * FORMAT_BYTES[job.precision.parameters] + num_trained * optimizer_bytes_per_parameter(job))
