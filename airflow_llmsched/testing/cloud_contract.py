"""What every cloud must prove. Subclass ``CloudContract``, override its ``harness`` fixture, and run pytest.

A cloud with ``CloudFeature.NOTICES`` subclasses ``NoticingCloudContract`` instead, one that has words of its own for
the states of its machines ``WordyCloudContract``, too, and one that is made of parts which answer each for itself
(regions, zones) ``SpreadCloudContract``. What a cloud does of its own accord is at the harness's hand, so that a
simulator and a server that keeps state prove the same. Whether something is left is asked of what sends the bill, never
of the adapter.
"""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

import pytest

from airflow_llmsched.domain.capacity import Offer, Requirement, ShapeNeed
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeasedNodeState, LeaseState, NodeNotice, NoticeKind
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.effect_points import Side, listen
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    LeaseGoneError,
    LeftoverError,
    LlmschedError,
    PartlySeenError,
    QuotaError,
    TransientError,
)
from airflow_llmsched.ports import Cloud

LEASE_S = 3600.0
SETTLE_S = 600.0
"""How long a cloud may take to bring up, or to remove, a few machines that it has."""


class CloudHarness(ABC):
    """One cloud under test and what lies beyond the port. Fresh: nothing is rented, and 8 nodes of the offers are free.

    Faults are for this cloud as a whole, and last until they are spent.
    """

    cloud: Cloud

    @abstractmethod
    def reopen(self) -> Cloud:
        """Return the same cloud as another process sees it, which remembers nothing."""

    @abstractmethod
    def offer(self) -> Offer:
        """Return on-demand capacity."""

    @abstractmethod
    def spot_offer(self) -> Offer:
        """Return spot capacity in another zone."""

    @abstractmethod
    def now_s(self) -> float:
        """Return Unix seconds of this cloud's clock."""

    @abstractmethod
    def advance(self, duration_s: float) -> None:
        """Let this cloud's time pass."""

    @abstractmethod
    def billed(self) -> frozenset[str]:
        """Return everything that costs money, or still may: machines, disks, addresses, requests that may be met."""

    @abstractmethod
    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        """Have room for only ``num_nodes`` more in the offer's pool."""

    @abstractmethod
    def limit_quota(self, offer: Offer, *, num_nodes: int) -> None:
        """Allow the account only ``num_nodes`` more in the offer's region."""

    @abstractmethod
    def lose_reply(self) -> None:
        """Carry out the next call that creates something, and lose the answer."""

    @abstractmethod
    def throttle(self, *, num_calls: int) -> None:
        """Refuse the next calls as too many."""

    @abstractmethod
    def refuse_removal(self, *, num_calls: int) -> None:
        """Answer the next calls that remove something with an error, and remove nothing."""

    @abstractmethod
    def hide_new(self) -> None:
        """List what is created from now on only ``consistency_s`` later."""

    @abstractmethod
    def go_dark(self, *, is_dark: bool) -> None:
        """Answer nothing at all, or answer again."""

    @abstractmethod
    def preempt(self, node: NodeId) -> None:
        """Take a node, without a word before."""

    def notify(self, node: NodeId, notice: NodeNotice) -> None:
        """Announce something about a node. Only for clouds that do."""
        raise NotImplementedError

    def speak(self, node: NodeId, word: str) -> None:
        """Call the state of a node ``word`` from now on. Only for clouds that have words for them."""
        raise NotImplementedError

    def far_offer(self) -> Offer:
        """Return on-demand capacity in another part of the cloud. Only for clouds that have several."""
        raise NotImplementedError

    def silence(self, *, is_silent: bool) -> None:
        """Have the part of the cloud that ``far_offer`` is in answer nothing, or answer again. Only for such."""
        raise NotImplementedError

    def leave_parts(self) -> None:  # noqa: B027 - not every cloud has such parts
        """Have machines that go leave behind what came with them: disks, interfaces, addresses."""

    def close(self) -> None:  # noqa: B027 - most have nothing to stop
        """Stop whatever the harness started."""

    def wait(self, predicate: Callable[[], bool], limit_s: float = SETTLE_S) -> None:
        """Let time pass until ``predicate`` holds. Raises ``AssertionError`` after ``limit_s`` of this cloud's time."""
        give_up_at_s = self.now_s() + limit_s
        while not predicate():
            assert self.now_s() < give_up_at_s, f"not so after {limit_s} s"
            self.advance(5.0)


RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
OTHER_RUN = RunKey("ls-bbbbbbbbbbbbbbbbbbbb")


def lease_key(rental: int = 1, *, run: RunKey = RUN) -> LeaseKey:
    """Return a key of the run."""
    return LeaseKey(run=run, generation=1, rental=rental)


def origin(run: RunKey = RUN) -> RunOrigin:
    """Return an origin with what Airflow allows in ids, and most clouds do not in tags."""
    return RunOrigin(
        deployment_id="d" * 32, run=run, dag_id="Pre-train.ä", run_id="manual__2026-11-29T21:00:00.000000+00:00"
    )


class _DiedError(BaseException):
    """A process that ends at an effect: nothing may catch it."""


class CloudContract(ABC):
    """The suite."""

    @pytest.fixture
    @abstractmethod
    def harness(self) -> CloudHarness:
        """Return a fresh cloud under test."""

    # Renting

    def test_all_nodes_come_in_one_zone_with_ids_and_addresses_of_their_own(self, harness: CloudHarness) -> None:
        lease = self.active(harness, num_nodes=3)
        assert lease.num_nodes == len(lease.nodes) == 3
        assert len({node.id for node in lease.nodes}) == len({node.address for node in lease.nodes}) == 3
        assert {node.state for node in lease.nodes} == {LeasedNodeState.RUNNING}
        assert all(node.address for node in lease.nodes)
        assert (lease.pool, lease.key) == (harness.offer().pool, lease_key())

    def test_spot_capacity_is_rented_as_spot(self, harness: CloudHarness) -> None:
        offer = harness.spot_offer()
        lease = self.active(harness, offer=offer)
        assert lease.pool == offer.pool
        (found,) = harness.reopen().find(RUN)
        assert found.pool == offer.pool

    def test_what_is_rented_says_whose_it_is_and_until_when(self, harness: CloudHarness) -> None:
        until_s = harness.now_s() + LEASE_S
        lease = self.acquire(harness)
        self.settle(harness)
        (found,) = harness.reopen().find_all()
        assert (found.id, found.key, found.origin) == (lease.id, lease_key(), origin())
        assert found.expires_at_s == pytest.approx(until_s, abs=1.0)

    def test_one_key_rents_once_however_often_it_is_asked(self, harness: CloudHarness) -> None:
        until_s = harness.now_s() + LEASE_S
        first = self.acquire(harness, until_s=until_s)
        billed = harness.billed()
        again = self.acquire(harness, cloud=harness.reopen(), until_s=until_s)
        assert again.id == first.id
        assert {node.id for node in again.nodes} == {node.id for node in first.nodes}
        assert harness.billed() == billed

    def test_one_key_rents_once_even_while_the_cloud_does_not_list_what_is_new(self, harness: CloudHarness) -> None:
        harness.hide_new()
        until_s = harness.now_s() + LEASE_S
        self.acquire(harness, until_s=until_s)
        billed = harness.billed()
        with suppress(CouldNotLookError):
            self.acquire(harness, cloud=harness.reopen(), until_s=until_s)
        assert harness.billed() == billed

    def test_two_keys_rent_twice(self, harness: CloudHarness) -> None:
        one, two = self.active(harness), self.active(harness, key=lease_key(2))
        assert one.id != two.id
        assert not {node.id for node in one.nodes} & {node.id for node in two.nodes}

    def test_the_id_is_known_before_anything_is_rented(self, harness: CloudHarness) -> None:
        foretold = harness.reopen().lease_id(harness.offer().pool, lease_key())
        assert self.acquire(harness).id == foretold
        assert harness.cloud.lease_id(harness.offer().pool, lease_key(2)) != foretold

    def test_nothing_is_rented_for_a_time_that_has_passed(self, harness: CloudHarness) -> None:
        with pytest.raises(AbandonedError):
            self.acquire(harness, until_s=harness.now_s() - 1.0)
        assert harness.billed() == frozenset()

    # What can go wrong

    @pytest.mark.parametrize("num_free", [0, 1, 3])
    def test_too_few_nodes_are_none(self, harness: CloudHarness, num_free: int) -> None:
        """Field cases E1 (some came) and E5 (none came, and nobody said why)."""
        harness.run_short(harness.offer(), num_nodes=num_free)
        self.expect_refusal(harness, CapacityError, num_nodes=4)

    @pytest.mark.parametrize("num_allowed", [0, 1])
    def test_a_quota_is_told_from_a_shortage_and_leaves_nothing(self, harness: CloudHarness, num_allowed: int) -> None:
        """Field case E8."""
        offer = harness.offer()
        harness.limit_quota(offer, num_nodes=num_allowed)
        error = self.expect_refusal(harness, QuotaError, num_nodes=2)
        assert isinstance(error, QuotaError)
        assert error.region == offer.pool.region
        assert "quota" in str(error).lower()

    def test_a_removal_that_fails_is_tried_again(self, harness: CloudHarness) -> None:
        """Field case E7."""
        harness.run_short(harness.offer(), num_nodes=2)
        harness.refuse_removal(num_calls=2)
        self.expect_refusal(harness, CapacityError, num_nodes=3)

    def test_what_can_not_be_removed_is_named(self, harness: CloudHarness) -> None:
        """Field case E7, where it always fails: nobody goes on as if nothing were left."""
        lease = self.active(harness)
        harness.refuse_removal(num_calls=10_000)
        with pytest.raises(LeftoverError) as caught:
            harness.cloud.release(lease.id)
        assert set(caught.value.ids) & harness.billed()
        assert all(each in str(caught.value) for each in caught.value.ids)
        harness.refuse_removal(num_calls=0)
        harness.reopen().release(lease.id)
        self.expect_nothing_left(harness)

    def test_a_lost_answer_rents_nothing_twice(self, harness: CloudHarness) -> None:
        harness.lose_reply()
        until_s = harness.now_s() + LEASE_S
        with suppress(TransientError):
            self.acquire(harness, until_s=until_s)
        self.settle(harness)
        lease = self.acquire(harness, cloud=harness.reopen(), until_s=until_s)
        self.settle(harness)
        (found,) = harness.reopen().find(RUN)
        assert found.id == lease.id
        assert len(found.nodes) == 2
        harness.cloud.release(lease.id)
        self.expect_nothing_left(harness)

    def test_a_throttled_request_is_made_again_or_said_to_be(self, harness: CloudHarness) -> None:
        harness.throttle(num_calls=2)
        until_s = harness.now_s() + LEASE_S
        for _ in range(2):
            with suppress(TransientError):
                self.acquire(harness, until_s=until_s)
        lease = self.acquire(harness, until_s=until_s)
        harness.cloud.release(lease.id)
        self.expect_nothing_left(harness)

    def test_a_cloud_that_does_not_answer_is_not_an_empty_one(self, harness: CloudHarness) -> None:
        lease = self.active(harness)
        harness.go_dark(is_dark=True)
        cloud = harness.reopen()
        for look in (
            lambda: cloud.leases([lease.id]),
            lambda: cloud.find(RUN),
            cloud.find_all,
            lambda: cloud.release(lease.id),
            lambda: cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S),
        ):
            with pytest.raises(CouldNotLookError):
                look()
        harness.go_dark(is_dark=False)
        assert [found.id for found in cloud.find(RUN)] == [lease.id]

    # Looking

    def test_only_what_is_asked_for_is_found(self, harness: CloudHarness) -> None:
        mine = self.active(harness)
        other = self.active(harness, key=lease_key(run=OTHER_RUN), num_nodes=1)
        assert [lease.id for lease in harness.cloud.find(RUN)] == [mine.id]
        assert {lease.id for lease in harness.cloud.find_all()} == {mine.id, other.id}
        looked = harness.cloud.leases([mine.id, other.id])
        assert {key: lease.num_nodes for key, lease in looked.items()} == {mine.id: 2, other.id: 1}

    def test_what_was_never_rented_is_left_out(self, harness: CloudHarness) -> None:
        lease = self.acquire(harness)
        unknown = harness.cloud.lease_id(lease.pool, lease_key(9))
        assert harness.cloud.leases([]) == {}
        assert harness.cloud.leases([unknown]) == {}

    def test_a_node_that_is_taken_breaks_the_lease_and_is_named(self, harness: CloudHarness) -> None:
        """Field cases E11 and E13: the others go on running, and the bill with them."""
        lease = self.active(harness, offer=harness.spot_offer())
        taken, kept = lease.nodes
        harness.preempt(taken.id)
        harness.wait(lambda: self.look(harness, lease).state is LeaseState.BROKEN)
        states = {node.id: node.state for node in self.look(harness, lease).nodes}
        assert states == {taken.id: LeasedNodeState.PREEMPTED, kept.id: LeasedNodeState.RUNNING}
        harness.cloud.release(lease.id)
        self.expect_nothing_left(harness)

    # Keeping

    def test_a_renewal_moves_the_expiry_and_never_back(self, harness: CloudHarness) -> None:
        lease = self.active(harness)
        later_s = harness.now_s() + 3 * LEASE_S
        assert harness.cloud.renew(lease, until_s=later_s).expires_at_s == pytest.approx(later_s, abs=1.0)
        self.settle(harness)
        kept = harness.reopen().renew(lease, until_s=harness.now_s() + LEASE_S)
        assert kept.expires_at_s == pytest.approx(later_s, abs=1.0)
        (found,) = harness.reopen().find_all()
        assert found.expires_at_s == pytest.approx(later_s, abs=1.0)

    def test_what_is_gone_can_not_be_renewed(self, harness: CloudHarness) -> None:
        lease = self.active(harness)
        harness.cloud.release(lease.id)
        self.expect_nothing_left(harness)
        with pytest.raises(LeaseGoneError):
            harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)
        assert harness.billed() == frozenset()

    # Giving back

    def test_a_release_leaves_nothing_and_may_be_repeated(self, harness: CloudHarness) -> None:
        """Field cases E15 (what comes with a machine goes with it) and E18 (already gone is no error)."""
        lease = self.active(harness)
        for cloud in (harness.cloud, harness.reopen(), harness.cloud):
            cloud.release(lease.id)
        self.expect_nothing_left(harness)
        assert harness.cloud.find(RUN) == []
        assert all(each.state is LeaseState.ENDED for each in harness.cloud.leases([lease.id]).values())

    def test_a_release_of_what_never_was_is_silent(self, harness: CloudHarness) -> None:
        lease = self.acquire(harness)
        harness.cloud.release(harness.cloud.lease_id(lease.pool, lease_key(9)))
        self.settle(harness)
        assert [found.id for found in harness.cloud.find(RUN)] == [lease.id]

    def test_a_release_ends_what_is_still_on_its_way(self, harness: CloudHarness) -> None:
        lease = self.acquire(harness)
        harness.cloud.release(lease.id)
        self.expect_nothing_left(harness)
        harness.advance(SETTLE_S)
        assert harness.billed() == frozenset()

    def test_a_release_leaves_the_leases_of_others_alone(self, harness: CloudHarness) -> None:
        mine, other = self.active(harness), self.active(harness, key=lease_key(11))
        harness.cloud.release(mine.id)
        self.settle(harness)
        assert [(lease.id, lease.state) for lease in harness.cloud.find(RUN)] == [(other.id, LeaseState.ACTIVE)]

    # Dying anywhere

    def test_whatever_effect_a_process_dies_at_the_next_one_finds_what_is_left(self, harness: CloudHarness) -> None:
        for number in itertools.count(1):
            key = lease_key(number)
            if not self.dies_at(harness, key, number):
                break
            self.settle(harness)
            for lease in harness.reopen().find(RUN):
                assert lease.key == key
                assert lease.origin == origin()
                assert lease.expires_at_s <= harness.now_s() + 2 * LEASE_S
                harness.reopen().release(lease.id)
            self.expect_nothing_left(harness)
        assert number > 4, "a cloud passes an effect point before and after whatever it changes"

    # Offers and topology

    def test_offers_are_of_the_shapes_and_places_asked_for(self, harness: CloudHarness) -> None:
        pool = harness.offer().pool
        need = Requirement(by_shape={pool.shape: ShapeNeed(num_nodes=1, work_s=3600.0)})
        offers = harness.cloud.offers(need)
        assert pool in {offer.pool for offer in offers}
        assert {offer.pool.shape for offer in offers} == {pool.shape}
        assert {offer.pool.cloud for offer in offers} == {harness.cloud.name}
        nowhere = Requirement(by_shape=need.by_shape, wish=CapacityWish(regions=("nowhere-9",)))
        assert list(harness.cloud.offers(nowhere)) == []

    def test_every_node_of_a_lease_has_a_place_in_its_topology(self, harness: CloudHarness) -> None:
        lease = self.active(harness, num_nodes=2)
        tree = harness.cloud.topology(lease)
        assert {node.id for node in tree.nodes} == {node.id for node in lease.nodes}
        assert {node.shape for node in tree.nodes} == {lease.pool.shape}

    # For the tests above

    def acquire(
        self,
        harness: CloudHarness,
        *,
        cloud: Cloud | None = None,
        key: LeaseKey | None = None,
        offer: Offer | None = None,
        num_nodes: int = 2,
        until_s: float | None = None,
    ) -> Lease:
        key = key or lease_key()
        return (cloud or harness.cloud).acquire(
            offer or harness.offer(),
            key=key,
            origin=origin(key.run),
            num_nodes=num_nodes,
            until_s=harness.now_s() + LEASE_S if until_s is None else until_s,
        )

    def active(
        self, harness: CloudHarness, *, key: LeaseKey | None = None, offer: Offer | None = None, num_nodes: int = 2
    ) -> Lease:
        """Rent, and wait until it is all there."""
        lease = self.acquire(harness, key=key, offer=offer, num_nodes=num_nodes)
        harness.wait(
            lambda: (
                lease.id in harness.cloud.leases([lease.id]) and self.look(harness, lease).state is LeaseState.ACTIVE
            )
        )
        return self.look(harness, lease)

    def look(self, harness: CloudHarness, lease: Lease) -> Lease:
        return harness.cloud.leases([lease.id])[lease.id]

    def settle(self, harness: CloudHarness) -> None:
        """Let pass what the cloud says its lists may lag."""
        harness.advance(harness.cloud.consistency_s)

    def expect_nothing_left(self, harness: CloudHarness) -> None:
        harness.wait(lambda: harness.billed() == frozenset())

    def expect_refusal(self, harness: CloudHarness, kind: type[LlmschedError], *, num_nodes: int) -> LlmschedError:
        """Rent in vain, at once or after having waited, with nothing left behind. Returns the error of its kind."""
        with pytest.raises(kind) as caught:
            self.acquire(harness, num_nodes=num_nodes)
        assert type(caught.value) is kind
        self.expect_nothing_left(harness)
        self.settle(harness)
        assert list(harness.reopen().find(RUN)) == []
        return caught.value

    def dies_at(self, harness: CloudHarness, key: LeaseKey, passage: int) -> bool:
        """Rent, renew and release, dying at the effect that is passed as number ``passage``; False: it was not."""
        passages = itertools.count(1)

        def fire(point: str, side: Side) -> None:
            if next(passages) == passage:
                raise _DiedError(f"{side} {point}")

        listen(fire)
        try:
            lease = self.acquire(harness, key=key)
            harness.wait(lambda: lease.id in harness.cloud.leases([lease.id]))
            lease = harness.cloud.renew(lease, until_s=harness.now_s() + 1.5 * LEASE_S)
            harness.cloud.release(lease.id)
        except _DiedError:
            return True
        finally:
            listen(None)
        return False


class NoticingCloudContract(CloudContract):
    """For clouds that announce what they take."""

    def test_notices_are_read_with_the_state_and_break_nothing(self, harness: CloudHarness) -> None:
        """Field case E21: most hints come to nothing, so that a hint ends no lease."""
        one = self.active(harness, offer=harness.spot_offer())
        two = self.active(harness, key=lease_key(2), offer=harness.spot_offer())
        taken_at_s = float(int(harness.now_s()) + 120)
        harness.notify(one.nodes[0].id, NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=taken_at_s))
        harness.notify(two.nodes[1].id, NodeNotice(kind=NoticeKind.REBALANCE))
        looked = harness.cloud.leases([one.id, two.id])
        assert looked[one.id].interrupted_at_s == pytest.approx(taken_at_s, abs=1.0)
        assert looked[two.id].interrupted_at_s is None
        notices = {node.id: node.notice for node in looked[two.id].nodes}
        assert [notice and notice.kind for notice in notices.values()].count(NoticeKind.REBALANCE) == 1
        assert notices[two.nodes[1].id] is not None
        assert {each.state for each in looked.values()} == {LeaseState.ACTIVE}

    def test_a_node_that_is_taken_without_a_notice_is_seen_all_the_same(self, harness: CloudHarness) -> None:
        """Field case E21, the other way."""
        lease = self.active(harness, offer=harness.spot_offer())
        harness.preempt(lease.nodes[1].id)
        harness.wait(lambda: bool(self.look(harness, lease).gone))
        assert [node.id for node in self.look(harness, lease).gone] == [lease.nodes[1].id]


class WordyCloudContract(CloudContract):
    """The suite of clouds that have words for the states of their machines, and get new ones."""

    def test_a_word_that_nobody_knows_is_loud_and_keeps_no_lease_from_being_given_back(
        self, harness: CloudHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        odd, other = self.active(harness, key=lease_key(1)), self.active(harness, key=lease_key(2))
        node = odd.nodes[0].id
        harness.speak(node, "dozing")
        found = {lease.id: lease for lease in harness.reopen().find_all()}
        assert set(found) == {odd.id, other.id}
        (called,) = (each for each in found[odd.id].nodes if each.id == node)
        assert not called.state.is_gone
        assert not called.is_off
        errors = [record.getMessage().lower() for record in caplog.records if record.levelname == "ERROR"]
        assert any(all(part in said for part in (harness.cloud.name, node.lower(), "'dozing'")) for said in errors)
        until_s = harness.now_s() + 2 * LEASE_S
        assert harness.cloud.renew(odd, until_s=until_s).expires_at_s >= until_s
        for lease in (other, odd):
            harness.reopen().release(lease.id)
        self.expect_nothing_left(harness)


class SpreadCloudContract(CloudContract):
    """The suite of clouds of which a part may be silent while the others answer."""

    def test_a_silent_part_hides_no_lease_elsewhere_is_named_and_nothing_is_concluded_of_it(
        self, harness: CloudHarness
    ) -> None:
        near, far = self.near_and_far(harness)
        harness.silence(is_silent=True)
        cloud = harness.reopen()
        for look in (cloud.find_all, lambda: cloud.find(RUN)):
            with pytest.raises(PartlySeenError) as caught:
                look()
            assert [lease.id for lease in caught.value.seen] == [near.id]
            assert len(caught.value.unseen) == 1
            assert harness.far_offer().pool.region in str(caught.value)
        assert cloud.leases([near.id])[near.id].state is LeaseState.ACTIVE
        for ids in ([far.id], [near.id, far.id]):
            with pytest.raises(CouldNotLookError):
                cloud.leases(ids)
        harness.silence(is_silent=False)
        assert {lease.id: lease.state for lease in cloud.find_all()} == dict.fromkeys(
            (near.id, far.id), LeaseState.ACTIVE
        )

    def test_a_silent_part_keeps_no_lease_elsewhere_from_being_renewed_and_given_back(
        self, harness: CloudHarness
    ) -> None:
        near, far = self.near_and_far(harness)
        harness.silence(is_silent=True)
        later_s = harness.now_s() + 2 * LEASE_S
        assert harness.cloud.renew(near, until_s=later_s).expires_at_s == pytest.approx(later_s, abs=1.0)
        harness.cloud.release(near.id)
        for ask in (lambda: harness.cloud.renew(far, until_s=later_s), lambda: harness.cloud.release(far.id)):
            with pytest.raises(CouldNotLookError):
                ask()
        self.settle(harness)
        harness.silence(is_silent=False)
        assert [lease.id for lease in harness.reopen().find(RUN)] == [far.id]
        harness.cloud.release(far.id)
        self.expect_nothing_left(harness)

    def test_nothing_is_rented_twice_where_a_part_was_silent(self, harness: CloudHarness) -> None:
        until_s, offer = harness.now_s() + LEASE_S, harness.far_offer()
        first = self.active(harness, offer=offer)
        billed = harness.billed()
        harness.silence(is_silent=True)
        for key in (lease_key(), lease_key(2)):
            with pytest.raises(TransientError):
                self.acquire(harness, cloud=harness.reopen(), key=key, offer=offer, until_s=until_s)
        assert harness.billed() == billed
        harness.silence(is_silent=False)
        again = self.acquire(harness, cloud=harness.reopen(), offer=offer, until_s=until_s)
        assert (again.id, harness.billed()) == (first.id, billed)

    def test_a_silent_part_is_named_beside_what_the_others_offer(self, harness: CloudHarness) -> None:
        near, far = harness.offer().pool, harness.far_offer().pool
        need = Requirement(by_shape={near.shape: ShapeNeed(num_nodes=1, work_s=3600.0)})
        assert {near, far} <= {offer.pool for offer in harness.cloud.offers(need)}
        harness.silence(is_silent=True)
        with pytest.raises(PartlySeenError) as caught:
            harness.reopen().offers(need)
        assert {offer.pool for offer in caught.value.seen} & {near, far} == {near}
        assert {*caught.value.unseen} & {far.region, far.zone}

    def near_and_far(self, harness: CloudHarness) -> tuple[Lease, Lease]:
        return self.active(harness), self.active(harness, key=lease_key(2), offer=harness.far_offer())
