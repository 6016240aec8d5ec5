"""Asks AWS what there is, for how much, and for how many of it the account has room."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from airflow_llmsched.clouds.aws import offers as catalogue
from airflow_llmsched.clouds.aws.client import AwsClient, AwsError
from airflow_llmsched.clouds.aws.offers import Found, Held
from airflow_llmsched.clouds.aws.options import AwsOptions
from airflow_llmsched.clouds.aws.shapes import Shape, read_shape
from airflow_llmsched.clouds.aws.states import Reaction
from airflow_llmsched.clouds.aws.tags import CLOUD
from airflow_llmsched.clouds.parts import of_each
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.errors import CapacityError, CouldNotLookError, SpecError

log = logging.getLogger(__name__)

PRICING_REGION = "us-east-1"
"""Prices of all regions are asked for here (AWS price list, "endpoints")."""
PRODUCT = "Linux/UNIX"

Rows = list[dict[str, Any]]


class Market:
    """What can be rented in the regions of the options. Remembers facts that do not change: shapes, and zones' ids."""

    def __init__(self, client: AwsClient, options: AwsOptions) -> None:
        self._client = client
        self._options = options
        self._shapes: dict[tuple[str, str], Shape] = {}
        self._zones_by_id: dict[str, dict[str, str]] = {}
        self._are_prices_silent = False

    def offers(self, need: Requirement) -> list[Offer]:
        """Return offers of the shapes asked for, where the wish allows. Raises as ``Cloud.offers``.

        What the account may not ask (prices, quotas, scores) is not known, and said so in the log. So are prices where
        the one place that names those of all regions does not answer: there are other sources of prices.
        """
        wish = need.wish
        if wish.clouds and CLOUD not in wish.clouds:
            return []
        self._are_prices_silent = False
        return of_each(
            {
                region: partial(self._wished, region, need)
                for region in self._options.regions
                if (not wish.regions or region in wish.regions)
                and (not wish.jurisdictions or catalogue.jurisdiction(region) in wish.jurisdictions)
            }
        )

    def shape(self, region: str, name: str) -> Shape:
        """Return an instance type's facts. Raises ``SpecError`` for one that EC2 does not have there."""
        known = self._shapes.get((region, name))
        if known is None:
            filters = [{"Name": "instance-type", "Values": [name]}]
            rows = self._client.rows("describe_instance_types", "InstanceTypes", region=region, Filters=filters)
            if not rows:
                raise SpecError(path="shape", value=name, hint=f"is no EC2 instance type in {region}")
            known = self._shapes[(region, name)] = read_shape(rows[0])
        return known

    def subnet(self, pool: Pool) -> str:
        """Return the subnet to rent in: the zone's of the options, or its default one. Raises ``SpecError``."""
        chosen = self._options.subnets.get(pool.zone)
        if chosen:
            return chosen
        filters = [
            {"Name": "availability-zone", "Values": [pool.zone]},
            {"Name": "default-for-az", "Values": ["true"]},
        ]
        rows = self._client.rows("describe_subnets", "Subnets", region=pool.region, Filters=filters)
        if not rows:
            raise SpecError(path="subnets", value=pool.zone, hint="name a subnet: the zone has no default one")
        return str(rows[0]["SubnetId"])

    def reservation(self, pool: Pool, *, num_nodes: int) -> Held:
        """Return the reservation to rent in: the smallest with room. Raises ``CapacityError``."""
        fitting = [
            each
            for each in self._held(pool.region, [pool.shape])
            if each.is_active and each.zone == pool.zone and each.num_free >= num_nodes
        ]
        if not fitting:
            raise CapacityError(
                f"no reservation of {pool.shape} in {pool.zone} has room for {num_nodes} nodes now: wait for its "
                "start, or buy or create one"
            )
        return min(fitting, key=lambda each: (each.num_free, each.id))

    # Regions

    def _wished(self, region: str, need: Requirement) -> list[Offer]:
        wish = need.wish
        return [
            each
            for each in self._in_region(region, need)
            if (not wish.capacity_types or each.pool.capacity_type in wish.capacity_types)
            and (not wish.vendors or each.vendor in wish.vendors)
        ]

    def _in_region(self, region: str, need: Requirement) -> list[Offer]:
        wanted = sorted(need.by_shape)
        filters = [{"Name": "instance-type", "Values": wanted}]
        zones = catalogue.zones(
            self._client.rows(
                "describe_instance_type_offerings",
                "InstanceTypeOfferings",
                region=region,
                LocationType="availability-zone",
                Filters=filters,
            )
        )
        if not zones:
            return []
        now_s = self._client.clock.now_s()
        spot = catalogue.spot_usd_per_hour(self._spot_prices(region, list(zones), now_s))
        quotas = self._optional("list_service_quotas", "Quotas", region, service="service-quotas", ServiceCode="ec2")
        instances = self._running(region) if quotas else []
        held = self._held(region, list(zones))
        found: list[Offer] = []
        for name, where in zones.items():
            shape, num_nodes = self.shape(region, name), need.by_shape[name].num_nodes
            found += catalogue.offers(
                Found(
                    region=region,
                    shape=shape,
                    zones=where,
                    on_demand_usd_per_hour=self._price(region, name),
                    spot_usd_per_hour=spot.get(name, {}),
                    num_on_demand=catalogue.head_room(shape, is_spot=False, quotas=quotas, instances=instances),
                    num_spot=catalogue.head_room(shape, is_spot=True, quotas=quotas, instances=instances),
                    scores=self._scores(region, name, num_nodes),
                    held=[each for each in held if each.shape == name],
                    blocks=self._blocks(region, name, num_nodes),
                ),
                now_s=now_s,
                min_score=self._options.min_placement_score,
            )
        return found

    def _spot_prices(self, region: str, shapes: Sequence[str], now_s: float) -> Rows:
        return self._client.rows(
            "describe_spot_price_history",
            "SpotPriceHistory",
            region=region,
            InstanceTypes=list(shapes),
            ProductDescriptions=[PRODUCT],
            # From now on: the price that holds now of each pool, and no history.
            StartTime=datetime.fromtimestamp(now_s, UTC),
        )

    def _running(self, region: str) -> Rows:
        filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        reservations = self._client.rows("describe_instances", "Reservations", region=region, Filters=filters)
        return [row for each in reservations for row in each.get("Instances", ())]

    def _held(self, region: str, shapes: Iterable[str]) -> list[Held]:
        filters = [{"Name": "instance-type", "Values": sorted(shapes)}]
        rows = self._optional("describe_capacity_reservations", "CapacityReservations", region, Filters=filters)
        chosen = self._options.reservation_ids
        return [each for each in catalogue.held(rows) if (each.id in chosen if chosen else each.is_targeted)]

    def _price(self, region: str, shape: str) -> float:
        """Return the on-demand list price, NaN where it is not known."""
        if self._are_prices_silent:
            return math.nan
        terms = {
            "instanceType": shape,
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        try:
            rows: list[Any] = self._optional(
                "get_products",
                "PriceList",
                PRICING_REGION,
                service="pricing",
                ServiceCode="AmazonEC2",
                Filters=[{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in terms.items()],
            )
        except CouldNotLookError as error:
            log.warning("list prices are not known to offers: %s", error)
            self._are_prices_silent = True
            return math.nan
        prices = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        return catalogue.on_demand_usd_per_hour(prices) if prices else math.nan

    def _scores(self, region: str, shape: str, num_nodes: int) -> dict[str, int] | None:
        """Return the spot placement scores (1 to 10) by zone, None unless the options ask for them."""
        if not self._options.min_placement_score:
            return None
        rows = self._optional(
            "get_spot_placement_scores",
            "SpotPlacementScores",
            region,
            InstanceTypes=[shape],
            TargetCapacity=num_nodes,
            SingleAvailabilityZone=True,
            RegionNames=[region],
        )
        names = self._zone_names(region)
        return {names[row["AvailabilityZoneId"]]: row["Score"] for row in rows if row["AvailabilityZoneId"] in names}

    def _zone_names(self, region: str) -> dict[str, str]:
        """Return the account's name of each zone id: ``us-east-1a`` is not the same zone in every account."""
        if region not in self._zones_by_id:
            rows = self._client.rows("describe_availability_zones", "AvailabilityZones", region=region)
            self._zones_by_id[region] = {row["ZoneId"]: row["ZoneName"] for row in rows}
        return self._zones_by_id[region]

    def _blocks(self, region: str, shape: str, num_nodes: int) -> Rows:
        if not self._options.capacity_block_hours:
            return []
        return self._optional(
            "describe_capacity_block_offerings",
            "CapacityBlockOfferings",
            region,
            InstanceType=shape,
            InstanceCount=num_nodes,
            CapacityDurationHours=self._options.capacity_block_hours,
        )

    def _optional(self, operation: str, field: str, region: str, **body: Any) -> Rows:
        """Return rows of what an account may not be allowed to ask, or a region may not have: then none, and a word."""
        try:
            return self._client.rows(operation, field, region=region, **body)
        except CouldNotLookError as error:
            cause = error.__cause__
            if isinstance(cause, AwsError) and cause.meant is Reaction.FIX:
                log.warning("not known to offers from %s: %s", region, cause)
                return []
            raise
