"""What a deployment says about its AWS account, checked once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.clouds.aws.user_data import user_data
from airflow_llmsched.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsOptions:
    """JSON-safe options of the ``aws`` cloud. What belongs to one region is given by region.

    ``subnets`` are by zone; a zone without one takes its default subnet. ``image`` is an AMI by region, or one text for
    all of them (``resolve:ssm:...``). ``reservation_ids`` are capacity reservations and capacity blocks that may be
    used; without any, those of the account that are meant for whoever names them. ``spot_max_usd_per_hour`` caps what a
    spot node may cost, by shape. ``min_placement_score`` (1 to 10) leaves out spot pools that EC2 scores below it; 0
    asks for no scores. ``capacity_block_hours`` also lists capacity blocks that could be bought for so long; buying one
    is not ours. ``notice_queue_url`` is an SQS queue that an EventBridge rule feeds. ``consistency_s`` is how long EC2
    may take to list what is new, or to take back what is gone.
    """

    regions: tuple[str, ...]
    image: str | dict[str, str]
    subnets: dict[str, str] = field(default_factory=dict)
    security_group_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    instance_profile_arn: str = ""
    key_names: dict[str, str] = field(default_factory=dict)
    user_data: str = ""
    root_device: str = ""
    root_volume_size_gib: int = 0
    reservation_ids: tuple[str, ...] = ()
    spot_max_usd_per_hour: dict[str, float] = field(default_factory=dict)
    min_placement_score: int = 0
    capacity_block_hours: int = 0
    notice_queue_url: str = ""
    placement_groups: bool = True
    efa: bool = True
    public_addresses: bool = False
    power_off_at_expiry: bool = True
    consistency_s: float = 60.0
    endpoint_url: str = ""

    def image_in(self, region: str) -> str:
        """Return the AMI of a region. Raises ``SpecError`` where none is given."""
        image = self.image if isinstance(self.image, str) else self.image.get(region, "")
        if not image:
            raise SpecError(path="image", value=self.image, hint=f"names no AMI for {region}")
        return image


def read_options(given: Mapping[str, Any]) -> AwsOptions:
    """Return checked options. Raises ``SpecError``, naming the option."""
    known = {each.name for each in fields(AwsOptions)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise SpecError(path=unknown[0], hint=f"is no option of the aws cloud; there are {', '.join(sorted(known))}")
    try:
        options = codec.from_plain(AwsOptions, dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise SpecError(path=path, value=given.get(path), hint=first["msg"]) from error
    if not options.regions:
        raise SpecError(path="regions", value=(), hint="name at least one, e.g. us-east-1")
    if bool(options.root_device) != bool(options.root_volume_size_gib):
        raise SpecError(
            path="root_device", value=options.root_device, hint="goes together with root_volume_size_gib, or not at all"
        )
    if not 0 <= options.min_placement_score <= 10:
        raise SpecError(path="min_placement_score", value=options.min_placement_score, hint="must be 0 (off) to 10")
    user_data(expires_s="0", own=options.user_data, has_switch=options.power_off_at_expiry)
    return options
