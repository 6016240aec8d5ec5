"""Many runs that rent, die somewhere among faults, and are reaped: what is left of machines in each cloud."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_llmsched.testing.cloud_contract import CloudHarness
from tests.support.aws_cloud import LitteredAwsHarness
from tests.support.azure_cloud import LitteredAzureHarness
from tests.support.cloud_faults import FaultPlan
from tests.support.gcp_cloud import SHAPE, GcpCloudHarness, TpuHarness
from tests.support.lease_house import LeaseHouse, Ordeal, every_death, reap_after_expiry, undergo
from tests.support.onprem_cloud import OnPremCloudHarness
from tests.support.sim_cloud import SimCloudHarness

CLOUDS: Mapping[str, Callable[[], CloudHarness]] = {
    "aws": LitteredAwsHarness,
    "azure": LitteredAzureHarness,
    "gcp": GcpCloudHarness,
    "gcp-queue": partial(GcpCloudHarness, queued_shapes=[SHAPE]),
    "gcp-tpu": partial(TpuHarness, shortage_s=300.0),
    "onprem": OnPremCloudHarness,
    "sim": SimCloudHarness,
}
"""How to begin anew with each cloud."""

FAULT_RATIO = 0.08
"""Share of calls that go wrong in some way, in runs with faults."""


@dataclass(kw_only=True)
class Tally:
    """What runs came to. ``left`` names what was billed after the reaper's one pass, by run."""

    num_runs: int = 0
    num_deaths: int = 0
    num_billed: int = 0
    """Runs after which something was billed before the reaper came: those that it is there for."""
    passed: set[str] = field(default_factory=set)
    shot: set[str] = field(default_factory=set)
    left: dict[str, frozenset[str]] = field(default_factory=dict)
    survived: dict[str, tuple[Ordeal, Any]] = field(default_factory=dict)
    """By passage that a run with faults came by alive: how it would have died there, and what its faults are drawn by.
    """

    @property
    def missed(self) -> set[str]:
        """Passages, by side and point, at which no run died."""
        return self.passed - self.shot

    def take(self, name: str, ordeal: Ordeal, passages: list[str], *, billed: bool, left: frozenset[str]) -> None:
        shot = [passages[number - 1] for number in ordeal.fatal if number <= len(passages)]
        self.num_runs += 1
        self.num_deaths += len(shot)
        self.num_billed += billed
        self.passed |= set(passages)
        self.shot |= set(shot)
        if left:
            self.left[name] = left


def ordeals(cloud: str, *, num_runs: int, seed: int) -> Tally:
    """Put ``num_runs`` runs through it: first one for each passage of an undisturbed run, then by chance, with faults.

    Where there are fewer runs than passages, passages are drawn. Passages at which nobody died so far are gone by once
    more, by the same faults, and are fatal then: as many runs are added.
    """
    tally = Tally()
    chance = random.Random(f"{cloud}:{seed}")
    num_passages = _undisturbed(cloud, tally)
    single = list(every_death(num_passages))
    planned = chance.sample(single, num_runs) if num_runs < len(single) else single
    for ordeal in planned:
        _put_through(cloud, ordeal, tally, faults=None)
    for _ in range(num_runs - len(planned)):
        _put_through(cloud, Ordeal.drawn(chance, num_passages=num_passages), tally, faults=chance)
    for passage in sorted(
        tally.missed & tally.survived.keys()
    ):  # what only faults lead to, and nobody died at by chance
        ordeal, state = tally.survived[passage]
        chance.setstate(state)
        _put_through(cloud, ordeal, tally, faults=chance)
    return tally


def _undisturbed(cloud: str, tally: Tally) -> int:
    """Return how many passages a run has that rents on second try, keeps and gives back."""
    harness = CLOUDS[cloud]()
    try:
        passages = undergo(_house(harness), Ordeal(fatal=(), is_taken_up=False, num_nodes=3))
        assert harness.billed() == frozenset()
    finally:
        harness.close()
    tally.passed |= set(passages)
    return len(passages)


def _house(harness: CloudHarness, *, num_free: int = 2) -> LeaseHouse:
    harness.run_short(harness.offer(), num_nodes=num_free)
    return LeaseHouse(harness)


def _put_through(cloud: str, ordeal: Ordeal, tally: Tally, *, faults: random.Random | None) -> None:
    harness, state = CLOUDS[cloud](), faults and faults.getstate()
    name = f"{cloud}:{tally.num_runs}:{ordeal}"
    try:
        house = _house(harness, num_free=2 if faults is None else faults.choice([0, 1, 2, 8]))
        plan = getattr(harness, "plan", None)
        if faults is not None:
            _disturb(harness, plan, faults)
        passages = undergo(house, ordeal)
        for number, passage in enumerate(passages if faults else (), start=1):
            fatal = tuple(sorted({*ordeal.fatal, number}))
            tally.survived.setdefault(passage, (replace(ordeal, fatal=fatal), state))
        _leave_in_peace(harness, plan)
        billed = bool(harness.billed())
        tally.take(name, ordeal, passages, billed=billed, left=reap_after_expiry(house))
    finally:
        harness.close()


def _disturb(harness: CloudHarness, plan: FaultPlan | None, faults: random.Random) -> None:
    if faults.random() < 0.3:
        harness.hide_new()
    if faults.random() < 0.2:
        harness.lose_reply()
    if faults.random() < 0.1:
        harness.limit_quota(harness.offer(), num_nodes=faults.choice([0, 1]))
    harness.refuse_removal(num_calls=faults.choice([0, 0, 0, 1, 2, 3]))
    if plan is not None:
        plan.randomly(FAULT_RATIO, seed=faults.randrange(2**32))
    else:
        harness.throttle(num_calls=faults.choice([0, 0, 1, 3]))


def _leave_in_peace(harness: CloudHarness, plan: FaultPlan | None) -> None:
    harness.throttle(num_calls=0)
    harness.refuse_removal(num_calls=0)
    if plan is not None:
        plan.randomly(0.0, seed=0)
