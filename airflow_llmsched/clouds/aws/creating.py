"""Creates what a rental is made of: a launch template, a placement group, a fleet. Each step may be repeated.

The template comes first, and goes first: a fleet can not be created without it. So once a release has deleted it,
whoever was still about to create the fleet is refused by EC2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.clouds.aws import render
from airflow_llmsched.clouds.aws.client import AwsClient, AwsError
from airflow_llmsched.clouds.aws.render import Rental
from airflow_llmsched.clouds.aws.states import Reaction
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import AbandonedError

_CREATE_TEMPLATE = EffectPoint("aws.template.create")
_CREATE_GROUP = EffectPoint("aws.placement_group.create")
_CREATE_FLEET = EffectPoint("aws.fleet.create")

POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What EC2 said to a fleet: the instances that came, and why others did not."""

    instance_ids: tuple[str, ...]
    errors: tuple[Mapping[str, Any], ...]

    @property
    def codes(self) -> list[str]:
        """The codes of its errors, in EC2's words."""
        return [str(each.get("ErrorCode", "")) for each in self.errors]

    @property
    def said(self) -> str:
        """Its errors for a reader."""
        words = {f"{each.get('ErrorCode', '')}: {each.get('ErrorMessage', '')}" for each in self.errors}
        return "; ".join(sorted(words)) or "EC2 gave no reason"


def create(client: AwsClient, rental: Rental, *, until_s: float, consistency_s: float) -> Answer:
    """Create all of it, or what of it is not there yet, and return EC2's answer to the fleet.

    Raises ``AbandonedError`` when ``until_s`` (Unix seconds) has passed right before the fleet, ``AwsError``.
    """
    region = rental.pool.region
    _create_template(client, rental)
    if rental.has_group:
        _create_group(client, rental)
        _await_group(client, rental, limit_s=consistency_s)
    give_up_at_s = client.clock.now_s() + consistency_s
    while True:
        if until_s <= client.clock.now_s():
            raise AbandonedError(f"lease {region}/{rental.tags['llmsched:lease']} was to end before it began")
        try:
            return _create_fleet(client, rental)
        except AwsError as error:
            # A template or group that was created just now may not have been heard of everywhere.
            if error.meant is not Reaction.GONE or client.clock.now_s() >= give_up_at_s:
                raise
        client.clock.sleep(POLL_S)


@_CREATE_TEMPLATE
def _create_template(client: AwsClient, rental: Rental) -> None:
    _unless_taken(client, "create_launch_template", rental, render.launch_template(rental))


@_CREATE_GROUP
def _create_group(client: AwsClient, rental: Rental) -> None:
    _unless_taken(client, "create_placement_group", rental, render.placement_group(rental))


def _unless_taken(client: AwsClient, operation: str, rental: Rental, body: Mapping[str, Any]) -> None:
    """Create what has the key's name. What has it already is this rental's own: an earlier call's, or process's."""
    try:
        client.call(operation, region=rental.pool.region, **body)
    except AwsError as error:
        if error.meant is not Reaction.TAKEN:
            raise


def _await_group(client: AwsClient, rental: Rental, *, limit_s: float) -> None:
    """Wait until the group can be launched into: a fleet that is refused for it uses its token up."""
    give_up_at_s = client.clock.now_s() + limit_s
    named = [{"Name": "group-name", "Values": [rental.name]}]
    while True:
        rows = client.rows("describe_placement_groups", "PlacementGroups", region=rental.pool.region, Filters=named)
        if any(row["State"] == "available" for row in rows) or client.clock.now_s() >= give_up_at_s:
            return
        client.clock.sleep(POLL_S)


@_CREATE_FLEET
def _create_fleet(client: AwsClient, rental: Rental) -> Answer:
    said = client.call("create_fleet", region=rental.pool.region, **render.fleet(rental))
    return Answer(
        instance_ids=tuple(each for group in said.get("Instances", ()) for each in group.get("InstanceIds", ())),
        errors=tuple(said.get("Errors", ())),
    )
