"""What the harnesses of all adapters share: a virtual clock, and a plan of what goes wrong on the way to the cloud."""

from __future__ import annotations

from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.testing.cloud_contract import CloudHarness
from tests.support.cloud_faults import CallKind, CloudFault, FaultPlan


class PlannedCloudHarness(CloudHarness):
    """Set ``plan`` (a server's or a proxy's) and ``clock`` first of all."""

    clock: VirtualClock
    plan: FaultPlan

    def now_s(self) -> float:
        return self.clock.now_s()

    def advance(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)

    def lose_reply(self) -> None:
        self.plan.order(CloudFault.UNANSWERED, num_calls=1, kinds=frozenset({CallKind.CREATE}))

    def throttle(self, *, num_calls: int) -> None:
        self.plan.order(CloudFault.THROTTLED, num_calls=num_calls)

    def refuse_removal(self, *, num_calls: int) -> None:
        self.plan.order(CloudFault.FAILED, num_calls=num_calls, kinds=frozenset({CallKind.REMOVE}))

    def go_dark(self, *, is_dark: bool) -> None:
        self.plan.go_dark(is_dark=is_dark)
