"""A run that rents from each cloud, shot at each effect point: nothing is billed in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import crash_cloud, crash_combos
from tests.support.crash_combos import Combination

SMOKE = (
    "cloud:aws-rented:aws.placement_group.delete:after:1:cleared",
    "cloud:aws-rented:aws.spot_request.cancel:before:1:thawed_late",
    "cloud:aws-taken:aws.interface.delete:after:1:released",
    "cloud:aws-taken:leases.intend:after:1:thawed",
    "cloud:azure-rented:leases.end:after:1:thawed_late",
    "cloud:azure-rented:leases.intend:after:1:released",
    "cloud:azure-taken:azure.part.remove:before:3:left",
    "cloud:azure-taken:azure.part.remove:after:3:thawed_late",
    "cloud:gcp-queue-rented:gcp.group.create:before:1:released",
    "cloud:gcp-queue-rented:gcp.group.create:after:1:released",
    "cloud:gcp-queue-taken:gcp.machines.create:after:1:retried",
    "cloud:gcp-queue-taken:gcp.policy.create:before:1:thawed",
    "cloud:gcp-rented:gcp.policy.create:after:1:released",
    "cloud:gcp-rented:gcp.machine.delete:before:1:retried",
    "cloud:gcp-taken:gcp.machine.delete:after:1:thawed",
    "cloud:gcp-taken:gcp.policy.create:before:1:cleared",
    "cloud:gcp-tpu-rented:leases.end:before:1:released",
    "cloud:gcp-tpu-rented:gcp.slice.label:before:2:thawed",
    "cloud:gcp-tpu-taken:gcp.slice.delete:before:2:thawed_late",
    "cloud:gcp-tpu-taken:gcp.slice.delete:after:2:thawed",
    "cloud:onprem-rented:leases.end:after:1:left",
    "cloud:onprem-rented:leases.end:before:2:retried",
    "cloud:onprem-taken:leases.end:after:1:left",
    "cloud:onprem-taken:numbered.append:before:2:thawed_late",
    "cloud:sim-rented:leases.close:after:1:retried",
    "cloud:sim-rented:sim_cloud.remove:before:2:thawed",
    "cloud:sim-taken:sim_cloud.create:after:1:thawed_late",
    "cloud:sim-taken:sim_cloud.remove:after:1:retried",
)
"""Named, so that nothing has to be played to know them: `make test-crash` draws from all."""


@pytest.mark.parametrize("combination", crash_combos.chosen("cloud", crash_cloud.combinations, smoke=SMOKE), ids=str)
def test_run_that_rents_is_shot(combination: Combination, record_property: Callable[[str, object], None]) -> None:
    with crash_combos.repeatable(combination):
        record_property(crash_combos.PROPERTY, crash_cloud.run(combination).plain())
