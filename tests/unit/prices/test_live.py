from __future__ import annotations

from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.prices.live import CloudPrices
from airflow_llmsched.prices.merged import AgedSource, MergedPrices
from airflow_llmsched.units import HOUR_S
from tests.support.sim_cloud import SimCloudHarness, sim_pool

NEED = Requirement(by_shape={"sim.8x": ShapeNeed(num_nodes=2, work_s=HOUR_S)}, wish=CapacityWish(regions=("sim-east",)))


def test_cloud_tells_what_of_the_need_it_has_now() -> None:
    house = SimCloudHarness(sim_pool("a", num_free=3), sim_pool("a", region="sim-west"))
    source = CloudPrices(house.cloud, NEED)
    (offer,) = source.offers(now_s=house.now_s()).offers
    assert (source.name, offer.pool.region, offer.num_nodes) == ("sim", "sim-east", 3)


def test_cloud_that_names_no_price_has_none_by_itself() -> None:
    house = SimCloudHarness(sim_pool("a", usd_per_hour=float("nan"), num_free=3))
    merged = MergedPrices(AgedSource(source=CloudPrices(house.cloud, NEED)))
    assert merged.offers(now_s=house.now_s()) == PricedOffers(offers=(), rejections={"without a price": 1})
