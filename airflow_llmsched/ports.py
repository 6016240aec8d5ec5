"""Protocols that adapters implement. Synchronous; absence, failure to look and refusal are three different results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Literal, Protocol, runtime_checkable

from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.checkpoint import CheckpointRef, Compatibility, Verdict, VerifyDepth
from airflow_llmsched.domain.gang import FoundGang, GangHandle, GangSpec, GangStatus, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.lease import Lease, LeaseId
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.domain.switches import SwitchRequest
from airflow_llmsched.domain.topology import TopologyTree


class Clock(Protocol):
    """Time as an argument, so that the simulator can own it."""

    def now_s(self) -> float:
        """Return Unix seconds."""

    def sleep(self, duration_s: float) -> None:
        """Return after ``duration_s`` seconds of this clock."""


class EngineFeature(StrEnum):
    """What an engine can do beyond launching and stopping. A missing one is a rejection with a reason."""

    PREEMPT_NODE = "preempt_node"
    FREE_CAPACITY = "free_capacity"
    NODES_ARE_FIXED = "nodes_are_fixed"
    """Its nodes are made up on one machine, and no machine that a run rents is ever one of them."""
    OWN_QUEUE = "own_queue"
    """Its back end has a scheduler, whose word holds: nodes are not shared out before it (``control.arbiter``)."""
    NODES_ARE_RENTED = "nodes_are_rented"
    """It has no nodes but those that the run has rented, which are nobody else's: there is nothing to share out."""


class LateDuplicateGuard(StrEnum):
    """By what an engine sees to it that one attempt never becomes two gangs, however late a submit arrives.

    Each is a name that its back end gives away once: whoever comes second finds it taken, also by ``abandon``.
    """

    ATOMIC_DIRECTORY = auto()
    """A directory that appears at once (local, SSH)."""
    NAME = auto()
    """The job's own name (Kubernetes)."""
    CLIENT_TOKEN = auto()
    """A token that makes a repeated call the same call (EC2)."""
    REQUEST_ID = auto()
    """The same, where the back end calls it so (GCP)."""
    UNIQUE_NAME_AND_SINGLETON = auto()
    """A job name of which one job runs at a time, the others of that name ending at once (Slurm)."""
    RECORD = auto()
    """A record of a store that is written once, and says which engine's the attempt is (a fleet)."""
    TABLE = auto()
    """One table in the memory of the only process there is (a simulator)."""


class Engine(Protocol):
    """Runs gangs. See ``testing.engine_contract`` for what every adapter must prove."""

    name: str
    features: frozenset[EngineFeature]
    late_duplicate_guard: LateDuplicateGuard

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return a printable request. Pure. Raises ``SpecError`` for what this engine cannot express."""

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Start the gang, or return the handle of the gang already started under ``key``.

        Raises ``CapacityError`` (nothing free), ``LaunchError`` (refused), ``CouldNotLookError`` (outcome unknown),
        ``AbandonedError`` (the attempt was given up meanwhile, and nothing is started).
        """

    def abandon(self, key: AttemptKey) -> bool:
        """Use ``key`` up through ``late_duplicate_guard``, so that a submit that is still to come starts nothing.

        Returns True when no gang was or ever will be started under ``key``: it is then found as an ended gang that was
        stopped. False when there is one, live or ended; it is left as it is. Idempotent, and waits for no submit under
        way. Raises ``CouldNotLookError``.
        """

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run, live, ended and abandoned, oldest first.

        Raises ``CouldNotLookError``, never guesses.
        """

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang that has not ended, of whatever run and deployment, oldest first.

        Raises ``CouldNotLookError``.
        """

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each handle by one native call.

        Raises ``CouldNotLookError``. A handle that alone could not be looked at is left out while others could be.
        """

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End every process of the gang within ``grace_s`` + 5 s. Idempotent; silent when it has already ended."""

    def topology(self) -> TopologyTree:
        """Return nodes with what is free now. Raises ``CouldNotLookError``."""

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote; empty when it wrote nothing."""

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the same of several ranks, by one native call. Raises ``CouldNotLookError`` if one cannot be read."""


@runtime_checkable
class FencingEngine(Protocol):
    """What an ``Engine`` can do beside where it may prove of nodes that nobody sees that they are off."""

    def fence(self, handle: GangHandle) -> frozenset[NodeId]:
        """Return the nodes of an ended gang on which nothing of it can be alive; of a live one, none.

        Those that cannot be seen may be turned off for it; what was proven once holds. Takes a bounded time, and may be
        repeated. Raises ``CouldNotLookError``.
        """


@runtime_checkable
class SeparateEngine(Protocol):
    """An ``Engine`` whose machines are not those of another that its adapter opens: only the same ones are shared."""

    @property
    def machines(self) -> str:
        """What to call its machines, the same in every process: letters, digits, - and _, at most 32."""


@runtime_checkable
class InventoryEngine(Protocol):
    """An ``Engine`` that says which machines its nodes are: two engines that have some in common share those."""

    @property
    def inventory(self) -> Mapping[NodeId, str]:
        """Machines by what the engine calls them: words that are the same for the same machine in every engine."""


@runtime_checkable
class PartialEngine(Protocol):
    """An ``InventoryEngine`` that may have less of a machine than another one that lists it, or have it otherwise."""

    @property
    def parts(self) -> Mapping[NodeId, str]:
        """What it has of each node: words that are the same where another engine has the same."""


class CloudFeature(StrEnum):
    """What a cloud can do beyond renting and giving back."""

    TOPOLOGY = "topology"
    """``topology`` knows more of a node than its zone."""
    NOTICES = "notices"
    """``leases`` announces interruptions, where the cloud gives any, before they happen."""
    QUEUED = "queued"
    """A lease may be ``PENDING`` for hours: the cloud keeps the request until it can be met whole."""


class Cloud(Protocol):
    """Rents machines, all or none. See ``testing.cloud_contract`` for what every adapter must prove.

    Whatever costs money carries run key, lease key, origin and expiry from the call on that creates it, never from a
    later one: so a process that dies between any two calls leaves nothing that ``find_all`` does not list with an
    expiry. ``consistency_s`` is how long the cloud may take to list what was created, or to count what was deleted.
    """

    name: str
    features: frozenset[CloudFeature]
    late_duplicate_guard: LateDuplicateGuard
    consistency_s: float

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return what could be rented now of the shapes of ``need``, where its wish allows.

        An offer without a known price has none (``usd_per_hour`` is NaN), never a guessed one. Raises
        ``CouldNotLookError``; ``PartlySeenError`` with the other offers where regions or zones do not answer.
        """

    def topology(self, lease: Lease) -> TopologyTree:
        """Return where the lease's nodes hang, as deep as the cloud tells. Raises ``CouldNotLookError``."""

    def lease_id(self, pool: Pool, key: LeaseKey) -> LeaseId:
        """Return the id that the lease of ``pool`` under ``key`` has, or would have. Pure: nothing is asked."""

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        """Rent ``num_nodes`` of the offer's pool until ``until_s``, in one placement scope; all or none.

        Repeating it with the same arguments returns the same lease: there is at most one for each key. What it could
        not rent whole it has removed before it raises. A lease that is ``PENDING`` holds nothing yet, or not all.

        Raises:
            CapacityError: not enough there now. Wait, or try elsewhere.
            QuotaError: the account may not have so many there. Ask for quota, or try another region.
            SpecError: the cloud will never accept the request as it is.
            AbandonedError: ``until_s`` has passed, or the key's lease has been released. Nothing was created.
            LeftoverError: not enough there, and what had come could not be removed.
            TransientError: nothing was created; try again.
            CouldNotLookError: it is unknown what was created. Repeat, or release.
        """

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return each lease with its state and notices, by as few calls as the cloud allows; no call for no ids.

        One that the cloud does not know (any more, or not yet: ``consistency_s``) is left out. Raises
        ``CouldNotLookError`` when any of them could not be looked at.
        """

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases of which anything is left, oldest key first. Raises as :meth:`find_all`."""

    def find_all(self) -> Sequence[Lease]:
        """Return every lease of ours of which anything is left, of whatever run and deployment, by id.

        Raises ``CouldNotLookError``; ``PartlySeenError`` with the leases elsewhere where a part of the cloud does not
        answer. What is in such a part is in no lease that is returned: half a lease would look like a broken one.
        """

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Have the lease expire no sooner than ``until_s``; an expiry that is later already stays.

        Raises ``LeaseGoneError``, ``CouldNotLookError``.
        """

    def release(self, lease_id: LeaseId) -> None:
        """Give back whatever there is of the lease, requests included. Idempotent; silent when nothing is left.

        The key is used up: a later ``acquire`` with it raises ``AbandonedError``, as far as the cloud can tell.
        Raises ``LeftoverError``, ``CouldNotLookError``.
        """


class RunChannel(Protocol):
    """Control's end of the channel to the agents of one attempt. See ``testing.channel_contract``."""

    def prepare(self, nodes: Sequence[NodeId], *, at_s: float) -> str | None:
        """Make ready for agents on ``nodes``, before the gang is submitted. Safe to repeat. Raises ``StoreError``.

        Returns the folder of the 0600 files ``<node>.json`` that hand each agent its secret way in, for
        ``GangSpec.channel_links``; None when agents need none.
        """

    def tend(self, cursor: ChannelCursor, *, at_s: float) -> None:
        """Keep the agents able to use the channel: called with each new cursor; does nothing while nothing is due."""

    def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return whole reports after ``cursor``, in order per node, and the new cursor. A torn last one waits."""

    def latest(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return the newest whole report of each node that has one after ``cursor``, and the new cursor.

        One call reaches the end, however much was written meanwhile: what a watcher needs, which need not see all.
        """

    def order_checkpoint(self) -> None:
        """Ask all ranks to save at the next step boundary. Repeating it before they have is harmless."""

    def order_stop(self, *, reason: str) -> None:
        """Ask all ranks to save and exit 0 at the next step boundary."""

    def order_interval(self, *, interval_s: float) -> None:
        """Ask the trainer to save every ``interval_s`` seconds from now on."""

    def renew(self, *, until_s: float) -> None:
        """Let agents keep their ranks until ``until_s``, at most a lease's length from now; then they end them.

        Never shortens a lease: a watcher that was frozen and goes on would hide what another has just extended.
        """

    def extend(self, *, until_s: float) -> None:
        """Renew for longer than a lease's length, because a hand-over may take that long. Noted before it is done."""

    def revoke(self, *, at_s: float, lease_s: float) -> float:
        """Have agents honour no renewal from now on. Idempotent. Raises ``StoreError``.

        Returns when the last lease ends that any agent can have honoured, whoever renewed it and whenever.
        """


@runtime_checkable
class RecentChannel(Protocol):
    """What a ``RunChannel`` can do beside that keeps more than one look may read."""

    def recent(self) -> Sequence[NodeReport]:
        """Return some hundred of the newest reports of each node, at a cost that does not grow with the run.

        Raises ``CouldNotLookError``.
        """


class ChannelWitness(Protocol):
    """What both ends of one attempt's channel last said, for whoever judges a gang that nobody may be watching."""

    def lease_until_s(self) -> float | None:
        """Return until when control has let agents keep their ranks (Unix seconds), None if it never said.

        Raises ``CouldNotLookError``, also for what cannot be understood.
        """

    def last_sign_s(self) -> float | None:
        """Return when an agent last reported (Unix seconds), None before the first. Raises ``CouldNotLookError``."""


class PlacementSolver(Protocol):
    """Chooses nodes and maps ranks."""

    def place(self, problem: PlacementProblem, *, time_limit_s: float, seed: int) -> Placed | NotPlaced:
        """Return a placement or a counted refusal. Deterministic for a seed."""


class SwitchController(Protocol):
    """Programs the switches of a network for one gang at a time: where programmable switches plug in.

    ``planner.switch_request`` says what a plan would ask for. Nothing of ours asks yet: networks that add up on their
    own, and classes that operators configure, need no controller.
    """

    def reserve(self, request: SwitchRequest) -> None:
        """Grant all of a request or none. The same request again, after a lost reply too, changes nothing.

        Raises ``CapacityError`` where a switch has no room left, ``SpecError`` for domains it does not know and for a
        gang that holds something else, ``CouldNotLookError`` where it could not be asked.
        """

    def held(self) -> Mapping[AttemptKey, SwitchRequest]:
        """Return what gangs hold, for a reaper. Raises ``CouldNotLookError``."""

    def release(self, gang: AttemptKey) -> None:
        """Give back what a gang holds; nothing, if it holds nothing. Raises ``CouldNotLookError``."""


class CheckpointFormat(Protocol):
    """Knows when checkpoints of one layout on storage are complete and what can resume from them."""

    name: str

    def scan(self, root: str) -> Iterator[CheckpointRef]:
        """Yield checkpoints below ``root``, highest step first, each complete or torn and why; none if it is absent.

        They lie in ``root`` itself or in the folders of attempts below it (``SavedBy``). Of one step, finished names
        come first, and of those the later attempt's.
        """

    def verify(self, ref: CheckpointRef, *, depth: VerifyDepth) -> Verdict:
        """Check ``ref`` as deep as asked. Raises ``CouldNotLookError`` when storage cannot be read."""

    def can_resume(self, ref: CheckpointRef, layout: ParallelLayout) -> Compatibility:
        """Say whether a gang with ``layout`` can load ``ref``."""


class PriceSource(Protocol):
    """Knows what capacity costs. Where it is bought is another's business."""

    @property
    def name(self) -> str:
        """Return what to call it where its prices are counted."""

    def offers(self, *, now_s: float) -> PricedOffers:
        """Return what is known at ``now_s`` (Unix seconds), each offer with its price's own date and source.

        What could not be understood is counted, not guessed. Raises ``CouldNotLookError`` or ``StoreError`` when it
        could not be read, ``DataError`` when what was read is damaged.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One stored object. ``key`` is relative to the store's root."""

    key: str
    num_bytes: int
    modified_s: float


class Presigner(Protocol):
    """Makes URLs by which whoever holds one may do one thing to one object for a while, without credentials."""

    def presign(self, method: Literal["GET", "PUT"], keys: Sequence[str], *, lifetime_s: float) -> Sequence[str]:
        """Return a URL for each key. They are secrets. Raises ``StoreError``, ``SpecError`` where a store has none."""


class ObjectStore(Protocol):
    """Bytes under keys (``a/b/c``, no leading slash). Raises ``StoreError`` whenever it could not look or write."""

    @property
    def uri(self) -> str:
        """Return the root's URI."""

    def get(self, key: str) -> bytes:
        """Return an object's bytes. Raises ``ObjectMissingError``."""

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite; readers see the old bytes or the new, never a mixture."""

    def create(self, key: str, data: bytes) -> None:
        """Write only if absent, durably. Raises ``ObjectExistsError``: of two writers exactly one wins."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield objects whose key starts with ``prefix``, in key order."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names directly below ``prefix`` (empty, or ending with a slash) that hold objects, in order.

        What lies deeper is not listed, so that this costs as much as there are names.
        """

    def delete(self, key: str) -> None:
        """Delete; silent when absent."""
