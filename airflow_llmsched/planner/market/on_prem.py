"""What an hour of one's own node costs: its purchase spread over the hours it works, its power and its upkeep. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.errors import SpecError
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """What owning one node comes to.

    ``capex_usd`` less ``residual_usd`` is written off in a straight line over ``lifetime_s``. ``busy_ratio`` is the
    share of that time in which the node works for anybody: idle hours are paid by the others. ``power_kw`` is drawn at
    the socket while it works; ``overhead_ratio`` is what cooling and supply take on top, per unit of that power (a PUE
    of 1.3 is 0.3). ``opex_usd_per_hour`` is space, support and staff. ``carbon_g_per_kwh`` are grams of CO2 equivalent
    that go with the electricity; None: not known.
    """

    capex_usd: float
    lifetime_s: float
    power_kw: float = 0.0
    usd_per_kwh: float = 0.0
    overhead_ratio: float = 0.0
    opex_usd_per_hour: float = 0.0
    residual_usd: float = 0.0
    busy_ratio: float = 1.0
    carbon_g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for what has no meaning."""
        for name in ("capex_usd", "power_kw", "usd_per_kwh", "overhead_ratio", "opex_usd_per_hour", "residual_usd"):
            if not getattr(self, name) >= 0:
                raise SpecError(path=name, value=getattr(self, name), hint="must be 0 or more")
        if self.carbon_g_per_kwh is not None and not self.carbon_g_per_kwh >= 0:
            raise SpecError(path="carbon_g_per_kwh", value=self.carbon_g_per_kwh, hint="must be 0 or more")
        if not self.lifetime_s > 0:
            raise SpecError(path="lifetime_s", value=self.lifetime_s, hint="must be above 0")
        if not 0 < self.busy_ratio <= 1:
            raise SpecError(path="busy_ratio", value=self.busy_ratio, hint="must be above 0 and at most 1")
        if self.residual_usd > self.capex_usd:
            raise SpecError(path="residual_usd", value=self.residual_usd, hint="must not exceed capex_usd")

    @property
    def energy_usd_per_hour(self) -> float:
        """Power and its overhead, at the price of electricity."""
        return self._drawn_kw * self.usd_per_kwh

    @property
    def carbon_g_per_hour(self) -> float | None:
        """What goes with the power and its overhead; None where nobody says, also of the power."""
        return self._drawn_kw * self.carbon_g_per_kwh if self.carbon_g_per_kwh is not None and self.power_kw else None

    @property
    def usd_per_hour(self) -> float:
        """All of it, for one hour of work."""
        written_off_usd = (self.capex_usd - self.residual_usd) / (self.lifetime_s / HOUR_S)
        return (written_off_usd + self.opex_usd_per_hour) / self.busy_ratio + self.energy_usd_per_hour

    @property
    def _drawn_kw(self) -> float:
        return self.power_kw * (1 + self.overhead_ratio)
