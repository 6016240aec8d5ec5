"""A run that rents, dies anywhere, is taken up or not, and is reaped: the same for every cloud's harness."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_llmsched.control.lease_book import LeaseBook, RentalIntent
from airflow_llmsched.control.lease_keeping import Kept, LeaseKeeper
from airflow_llmsched.control.lease_reaping import SKEW_S, LeaseReaper
from airflow_llmsched.control.reaper import Reap
from airflow_llmsched.control.renting import CloudChoice, Renter, Wanted
from airflow_llmsched.domain.capacity import Offer, Quote
from airflow_llmsched.domain.identity import LeaseKey, RunKey
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState, NodeNotice, NoticeKind
from airflow_llmsched.errors import LlmschedError
from airflow_llmsched.ports import Cloud, CloudFeature, ObjectStore
from airflow_llmsched.testing.cloud_contract import LEASE_S, RUN, CloudHarness, origin
from tests.support.crashing import CrashPoints, WorkerDied, listening
from tests.support.memory_store import MemoryStore
from tests.support.sim_cloud import sim_pool


class HarnessClock:
    """The harness's time as ``ports.Clock``."""

    def __init__(self, harness: CloudHarness) -> None:
        self._harness = harness

    def now_s(self) -> float:
        return self._harness.now_s()

    def sleep(self, duration_s: float) -> None:
        self._harness.advance(duration_s)


def quote_of(offer: Offer, *, num_nodes: int = 2, now_s: float = 0.0) -> Quote:
    return Quote(
        offer=offer,
        num_nodes=num_nodes,
        compute_usd=1.0,
        egress_usd=0.0,
        stage_s=0.0,
        finish_at_s=now_s + 3600.0,
        valid_until_s=now_s + 3600.0,
    )


def intent_of(key: LeaseKey, *, at_s: float = 100.0) -> RentalIntent:
    return RentalIntent(
        key=key,
        lease_id=LeaseId(f"z/{key.name}"),
        purpose="train",
        cloud="sim",
        cloud_options="{}",
        offer=sim_pool().offer,
        num_nodes=2,
        until_s=at_s + 3600.0,
        at_s=at_s,
        origin=origin(),
    )


class LeaseHouse:
    """One run, one cloud, and a reaper."""

    def __init__(self, harness: CloudHarness, *, run: RunKey = RUN, store: ObjectStore | None = None) -> None:
        self.harness = harness
        self.run = run
        self.store = store or MemoryStore()
        self.clock = HarnessClock(harness)

    def renter(self) -> Renter:
        """Return what a new process has."""
        return Renter(self.book(), open_cloud=self.open_cloud, clock=self.clock)

    def open_cloud(self, _name: str, _options: Mapping[str, Any]) -> Cloud:
        return self.harness.reopen()

    def keep(self) -> Kept:
        """Return what came of keeping the run's leases once."""
        return LeaseKeeper(open_cloud=self.open_cloud, clock=self.clock).keep([self.book()])[self.run]

    def book(self) -> LeaseBook:
        return LeaseBook(self.store, self.run)

    def damage(self, lease: Lease, record: str = "intended") -> str:
        """Have one record of the book be torn; an intent together with its copy. Returns its key."""
        folder = f"runs/{self.run}/leases/g{lease.key.generation:04d}-r{lease.key.rental:05d}"
        for each in (record, "copy") if record == "intended" else (record,):
            self.store.put(f"{folder}/{each}.json", self.store.get(f"{folder}/{each}.json")[:-5])
        return f"{folder}/{record}.json"

    def wanted(
        self,
        offers: Sequence[Offer] | None = None,
        *,
        num_nodes: int = 2,
        generation: int = 0,
        since_s: float | None = None,
    ) -> Wanted:
        now_s = self.harness.now_s()
        name = self.harness.cloud.name
        quotes = (self.harness.offer(), self.harness.spot_offer()) if offers is None else offers
        return Wanted(
            purpose="train",
            generation=generation,
            since_s=now_s if since_s is None else since_s,
            quotes=tuple(quote_of(offer, num_nodes=num_nodes, now_s=now_s) for offer in quotes),
            clouds={name: CloudChoice(name=name, options={})},
            origin=replace(origin(), run=self.run),
            hold_s=LEASE_S,
        )

    def rent_keep_and_give_back(self, *, generation: int = 0, num_nodes: int = 2) -> None:
        """What the workers of a run do, one after another, each with what it finds."""
        lease = self.renter().rent(self.wanted(generation=generation, num_nodes=num_nodes))
        self.until_there(lease)
        self.harness.advance(LEASE_S / 2 + 1.0)
        self.keep()
        self.renter().release()

    def rent_and_lose_a_node(self, *, generation: int = 0) -> None:
        """The same with spot capacity of which a node is announced to go, and goes."""
        lease = self.renter().rent(self.wanted([self.harness.spot_offer()], generation=generation))
        self.until_there(lease)
        seen = self.renter().look("train")
        if seen is not None and seen.nodes:
            node = seen.nodes[0].id
            if CloudFeature.NOTICES in self.harness.cloud.features:
                taken_at_s = self.harness.now_s() + 120.0
                self.harness.notify(node, NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=taken_at_s))
            self.keep()
            if any(node in each for each in self.harness.billed()):  # unless a successor gave it back meanwhile
                self.harness.preempt(node)
        self.harness.leave_parts()
        self.keep()
        self.renter().release()

    def until_there(self, lease: Lease) -> None:
        for _ in range(60):
            seen = self.renter().look("train")
            if seen is not None and seen.state is not LeaseState.PENDING:
                return
            self.harness.advance(10.0)

    def reap_once(self) -> list[str]:
        """Have the reaper pass by. Returns what it reaped."""
        reaper = LeaseReaper(
            store=self.store, deployment_id=origin().deployment_id, cloud=self.harness.reopen(), clock=self.clock
        )
        findings = [each for each in reaper.look() if isinstance(each.verdict, Reap)]
        return [str(each.lease_id) for each in map(reaper.reap, findings) if each.is_gone]

    def pass_expiry(self) -> None:
        """Let everything expire, and the cloud's lists become true."""
        self.harness.advance(3 * LEASE_S + SKEW_S + self.harness.cloud.consistency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordeal:
    """How a run dies: at passages ``fatal`` (each in a process that goes on after the one before), and what follows."""

    fatal: tuple[int, ...]
    is_taken_up: bool
    num_nodes: int = 2

    @classmethod
    def drawn(cls, chance: random.Random, *, num_passages: int) -> Ordeal:
        num_deaths = chance.choice([1, 1, 1, 2, 3])
        return cls(
            fatal=tuple(sorted(chance.sample(range(1, num_passages + 1), min(num_deaths, num_passages)))),
            is_taken_up=chance.random() < 0.5,
            num_nodes=chance.choice([1, 2, 3]),
        )


def undergo(house: LeaseHouse, ordeal: Ordeal) -> list[str]:
    """Put a run through it, up to the reaper's one pass after expiry; return the passages it came by, in order.

    The passages of the ordeal's numbers, as far as it came to them, are those at which it died.
    """
    points = CrashPoints(*ordeal.fatal)
    with listening(points):
        for life in range(len(ordeal.fatal) + 1):
            if life and not ordeal.is_taken_up:
                break
            try:
                house.rent_keep_and_give_back(generation=life % 2, num_nodes=ordeal.num_nodes)
                break
            except WorkerDied:
                house.harness.advance(20.0)
            except LlmschedError:
                house.harness.advance(5.0)  # the task is tried again, or not
    return points.passed


def reap_after_expiry(house: LeaseHouse) -> frozenset[str]:
    """Return what is billed after everything has expired and the reaper came by once."""
    house.pass_expiry()
    with suppress(WorkerDied):
        house.reap_once()
    house.harness.advance(house.harness.cloud.consistency_s)
    return house.harness.billed()


def every_death(num_passages: int) -> Iterator[Ordeal]:
    """Yield each single death, taken up and not."""
    for passage in range(1, num_passages + 1):
        for is_taken_up in (True, False):
            yield Ordeal(fatal=(passage,), is_taken_up=is_taken_up)
