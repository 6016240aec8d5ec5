"""What clouds offer at this moment, as a source of prices. Whether they name a price is theirs to say."""

from __future__ import annotations

from airflow_llmsched.domain.capacity import Requirement
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.ports import Cloud


class CloudPrices:
    """A ``PriceSource`` over one cloud, for what ``need`` may use."""

    def __init__(self, cloud: Cloud, need: Requirement) -> None:
        self._cloud, self._need = cloud, need
        self.name = cloud.name

    def offers(self, *, now_s: float) -> PricedOffers:  # noqa: ARG002  (the cloud's clock counts)
        """Return what the cloud offers now. Raises ``CouldNotLookError``."""
        return PricedOffers(offers=tuple(self._cloud.offers(self._need)))
