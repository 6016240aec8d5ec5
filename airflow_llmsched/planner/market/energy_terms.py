"""What a run's electricity and carbon count for among offers, and what both are where a cloud does not tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.offers import NO_WEIGHTS, Weights
from airflow_llmsched.planner.perf.energy import node_power_w
from airflow_llmsched.planner.perf.hardware import node_shapes

W_PER_KW = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A region's electricity: its price, and the grams of CO2 equivalent of a kilowatt hour; None: not known."""

    usd_per_kwh: float | None = None
    carbon_g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for less than nothing."""
        for name in ("usd_per_kwh", "carbon_g_per_kwh"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise SpecError(path=name, value=value, hint="must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyTerms:
    """``weights`` say what both count for, ``grids`` (by ``cloud/region``) what they are.

    ``overhead_ratio`` is what cooling and supply take on top of a node's power (a PUE of 1.3 is 0.3).
    """

    weights: Weights = NO_WEIGHTS
    grids: Mapping[str, Grid] = field(default_factory=dict)
    overhead_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for less than nothing."""
        if not self.overhead_ratio >= 0:
            raise SpecError(path="overhead_ratio", value=self.overhead_ratio, hint="must be 0 or more")

    def filled(self, offers: Sequence[Offer]) -> list[Offer]:
        """Return the offers with what their grid says, of a node at full use; what an offer tells itself stays.

        An offer in a region without a grid, or of a node whose power nobody states, is left as it is.
        """
        shapes = node_shapes() if self.grids else {}
        power_w = {name: node_power_w(shape) for name, shape in shapes.items()}
        return [self._filled(offer, power_w.get(offer.pool.shape)) for offer in offers]

    def _filled(self, offer: Offer, power_w: float | None) -> Offer:
        grid = self.grids.get(f"{offer.pool.cloud}/{offer.pool.region}")
        if grid is None or power_w is None:
            return offer
        drawn_kw = power_w * (1 + self.overhead_ratio) / W_PER_KW
        return replace(
            offer,
            energy_usd_per_hour=_first(offer.energy_usd_per_hour, drawn_kw, grid.usd_per_kwh),
            carbon_g_per_hour=_first(offer.carbon_g_per_hour, drawn_kw, grid.carbon_g_per_kwh),
        )


def _first(told: float | None, drawn_kw: float, per_kwh: float | None) -> float | None:
    if told is not None or per_kwh is None:
        return told
    return drawn_kw * per_kwh


NO_ENERGY = EnergyTerms()
