"""Control's end of the run channel in an object store. Agents reach it by presigned URLs, without credentials.

Below the channel's prefix: ``nodes.json`` names the nodes, ``up/<node>/<seq>.json`` are their reports, and ``down/``
holds orders, lease, revocation and, in ``grants/<node>.json``, the next URLs. The other end is ``agent.http_link``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.agent.link import LEASE, ORDERS, REVOKED, until_of
from airflow_llmsched.agent.spool import parse, write_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError, ObjectExistsError, ObjectMissingError, SpecError, StoreError
from airflow_llmsched.ports import ObjectStore, Presigner
from airflow_llmsched.telemetry.down import EXTENSIONS, NO_ORDERS, VERSION, extension_name, last_lease_end_s

log = logging.getLogger(__name__)

_PUT = EffectPoint("channel.store.put")
_CREATE = EffectPoint("channel.store.create")
_LINKS = EffectPoint("channel.store.links")

_MAX_REPORTS_PER_READ = 64
"""Per node and call. Whoever was away catches up in several reads, in bounded memory."""

_MAX_THREADS = 16
_NODES = "nodes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTerms:
    """How many reports a node gets URLs for at a time, and how long a URL is good for. Renewed at half of either."""

    num_urls: int = 256
    lifetime_s: float = 6 * 3600.0

    def __post_init__(self) -> None:
        if self.num_urls < 2:
            raise SpecError(path="num_urls", value=self.num_urls, hint="must be 2 or more: one is for the last report")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Granted:
    """What a node holds URLs for: reports ``first_seq`` to ``last_seq``."""

    first_seq: int
    last_seq: int
    issued_at_s: float


class ObjectChannel:
    """A ``RunChannel`` below ``prefix`` of a store. Positions of its cursor are the numbers of the last reports read.

    Args:
        store: Where the channel lives.
        prefix: Key prefix of this attempt's channel.
        presigner: Makes the agents' URLs; None when they reach the store by other means.
        links: Folder for the files that hand the first URLs to the agents; only its owner may read it.
        terms: Number and lifetime of URLs.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        presigner: Presigner | None = None,
        links: Path | None = None,
        terms: GrantTerms | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix.strip("/")
        self._presigner = presigner
        self._links = links
        self._terms = terms or GrantTerms()
        self._nodes: tuple[NodeId, ...] = ()
        self._granted: dict[NodeId, _Granted] = {}
        self.num_corrupt = 0

    def prepare(self, nodes: Sequence[NodeId], *, at_s: float) -> str | None:
        """Write what agents read, so that absent never has to be told from forbidden, and their first URLs.

        Repeating it gives an attempt that runs already its URLs again, and takes none away.
        """
        self._create(self._key(_NODES), {"v": VERSION, "nodes": list(nodes)})
        self._create(self._down(ORDERS), dict(NO_ORDERS))
        self._create(self._down(LEASE), {"v": VERSION, "until_s": 0.0})
        self._create(self._down(REVOKED), {"v": VERSION, "at_s": None})
        if self._presigner is None or self._links is None:
            return None
        for node in nodes:
            known = self._known_grant(node)
            first, last = (known.first_seq, known.last_seq) if known else (1, self._terms.num_urls)
            grant = self._grant(node, first, last, at_s=at_s)
            try:
                with _LINKS:
                    self._links.mkdir(parents=True, exist_ok=True, mode=0o700)
                    write_json(self._links / f"{node}.json", grant)
            except OSError as error:
                raise StoreError(f"cannot write the grant of node {node}: {error}; free or mend that folder") from error
        return str(self._links)

    def tend(self, cursor: ChannelCursor, *, at_s: float) -> None:
        """Give a node its next URLs once half of those it has, or half of their time, is used up."""
        if self._presigner is None:
            return
        for node in self._known_nodes():
            read_seq = cursor.positions.get(node, 0)
            granted = self._granted.get(node) or self._known_grant(node)
            if granted is None:
                continue
            self._granted[node] = granted
            half = (granted.first_seq + granted.last_seq) // 2
            if read_seq < half and at_s < granted.issued_at_s + self._terms.lifetime_s / 2:
                continue
            # A cursor may lag behind another reader's: what was granted is never taken back.
            first = max(granted.first_seq, read_seq + 1)
            last = max(granted.last_seq, read_seq + self._terms.num_urls)
            self._grant(node, first, last, at_s=at_s)

    def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return reports after ``cursor``, in order per node, and the new cursor.

        Each next report is asked for by its number: a listing would grow with the run. Raises ``CouldNotLookError``.
        """
        try:
            nodes = self._known_nodes()
            read = self._each(nodes, lambda node: self._read_node(node, cursor.positions.get(node, 0)))
        except StoreError as error:
            raise CouldNotLookError(f"cannot read the channel {self._prefix}: {error}") from error
        positions = dict(cursor.positions)
        positions.update({str(node): seq for node, (_, seq) in zip(nodes, read, strict=True) if seq})
        return [report for reports, _ in read for report in reports], ChannelCursor(positions=positions)

    def latest(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return the newest report of each node that has one after ``cursor``, and the new cursor.

        Raises ``CouldNotLookError`` as ``read`` does.
        """
        newest: dict[NodeId, NodeReport] = {}
        while True:
            reports, further = self.read(cursor)
            newest.update({report.node: report for report in reports})
            if further == cursor:
                return list(newest.values()), further
            cursor = further

    def recent(self) -> Sequence[NodeReport]:
        """Return the newest reports of each node, as ``ports.RecentChannel`` has it."""
        try:
            read = self._each(
                self._known_nodes(),
                lambda node: self._read_node(node, max(0, self._newest_seq(node) - _MAX_REPORTS_PER_READ)),
            )
        except StoreError as error:
            raise CouldNotLookError(f"cannot read the channel {self._prefix}: {error}") from error
        return [report for reports, _ in read for report in reports]

    def order_checkpoint(self) -> None:
        """Ask all ranks to save at the next step boundary. Repeating it costs one more save at most."""
        orders = self._orders()
        self._put(ORDERS, {**orders, "checkpoint_seq": orders["checkpoint_seq"] + 1})

    def order_stop(self, *, reason: str) -> None:
        """Ask all ranks to save and exit 0 at the next step boundary."""
        self._put(ORDERS, {**self._orders(), "stop": reason})

    def order_interval(self, *, interval_s: float) -> None:
        """Ask the trainer to save every ``interval_s`` seconds from now on."""
        self._put(ORDERS, {**self._orders(), "checkpoint_interval_s": interval_s})

    def renew(self, *, until_s: float) -> None:
        """Let agents keep their ranks until ``until_s`` (Unix seconds). Never shortens: an extension may be unread."""
        with contextlib.suppress(StoreError):  # what nobody can read is to be replaced
            if (until_of(self._json(self._down(LEASE))) or 0.0) >= until_s:
                return
        self._put(LEASE, {"v": VERSION, "until_s": until_s})

    def extend(self, *, until_s: float) -> None:
        """Renew for as long as a hand-over may take, noting it first: leases are overwritten, notes never."""
        self._create(self._down(extension_name(until_s)), {"v": VERSION, "until_s": until_s})
        self.renew(until_s=until_s)

    def revoke(self, *, at_s: float, lease_s: float) -> float:
        """Have agents honour no renewal from now on; return when the last one they can have honoured ends."""
        revoked = self._json(self._down(REVOKED))
        if revoked is None or revoked.get("at_s") is None:
            revoked = {"v": VERSION, "at_s": at_s}
            self._put(REVOKED, revoked)
        notes = [self._json(note.key) for note in self._store.list(self._key(f"down/{EXTENSIONS}/"))]
        return last_lease_end_s(revoked, notes, lease_s=lease_s)

    def _known_nodes(self) -> tuple[NodeId, ...]:
        if not self._nodes:
            known = self._json(self._key(_NODES))
            self._nodes = tuple(NodeId(node) for node in known["nodes"]) if known else ()
        return self._nodes

    def _newest_seq(self, node: NodeId) -> int:
        """Return the number of a node's last report, 0 before the first. Numbers have no gaps: steps are halved."""
        known, step = 0, 1
        while self._has(node, known + step):
            known, step = known + step, 2 * step
        while step > 1:
            step //= 2
            if self._has(node, known + step):
                known += step
        return known

    def _has(self, node: NodeId, seq: int) -> bool:
        try:
            self._store.get(self._up(node, seq))
        except ObjectMissingError:
            return False
        return True

    def _read_node(self, node: NodeId, seq: int) -> tuple[list[NodeReport], int]:
        reports: list[NodeReport] = []
        for _ in range(_MAX_REPORTS_PER_READ):
            try:
                data = self._store.get(self._up(node, seq + 1))
            except ObjectMissingError:
                break
            seq += 1
            report = _parse(data, node=node, seq=seq)
            if report is None:
                self.num_corrupt += 1
                log.warning("channel %s: report %d of node %s is corrupt: skipped", self._prefix, seq, node)
            else:
                reports.append(report)
        return reports, seq

    def _each(
        self, nodes: Sequence[NodeId], read: Callable[[NodeId], tuple[list[NodeReport], int]]
    ) -> list[tuple[list[NodeReport], int]]:
        if len(nodes) < 2:
            return [read(node) for node in nodes]
        with ThreadPoolExecutor(min(_MAX_THREADS, len(nodes))) as pool:
            return list(pool.map(read, nodes))

    def _grant(self, node: NodeId, first: int, last: int, *, at_s: float) -> dict[str, Any]:
        assert self._presigner is not None
        lifetime_s = self._terms.lifetime_s
        up = self._presigner.presign(
            "PUT", [self._up(node, seq) for seq in range(first, last + 1)], lifetime_s=lifetime_s
        )
        names = {"lease": LEASE, "orders": ORDERS, "revoked": REVOKED, "renewal": _grant_name(node)}
        down = self._presigner.presign("GET", [self._down(name) for name in names.values()], lifetime_s=lifetime_s)
        grant = {
            "v": VERSION,
            "first_seq": first,
            "up": list(up),
            "down": dict(zip(names, down, strict=True)),
            "issued_at_s": at_s,
            "expires_at_s": at_s + lifetime_s,
        }
        self._put(_grant_name(node), grant)
        self._granted[node] = _Granted(first_seq=first, last_seq=last, issued_at_s=at_s)
        return grant

    def _known_grant(self, node: NodeId) -> _Granted | None:
        grant = self._json(self._down(_grant_name(node)))
        if grant is None:
            return None
        try:
            first = int(grant["first_seq"])
            return _Granted(
                first_seq=first, last_seq=first + len(grant["up"]) - 1, issued_at_s=float(grant["issued_at_s"])
            )
        except (KeyError, TypeError, ValueError) as error:
            key = self._down(_grant_name(node))
            raise StoreError(f"object {key!r} in {self._store.uri} is damaged ({type(error).__name__})") from None

    def _orders(self) -> dict[str, Any]:
        return self._json(self._down(ORDERS)) or dict(NO_ORDERS)

    def _json(self, key: str) -> dict[str, Any] | None:
        try:
            data = self._store.get(key)
        except ObjectMissingError:
            return None
        plain = parse(data)
        if plain is None:
            raise StoreError(f"object {key!r} in {self._store.uri} holds no JSON object: look at it, or delete it")
        return plain

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        with _PUT:
            self._store.put(self._down(name), codec.to_json(dict(value)))

    def _create(self, key: str, value: Mapping[str, Any]) -> None:
        with contextlib.suppress(ObjectExistsError), _CREATE:
            self._store.create(key, codec.to_json(dict(value)))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _up(self, node: NodeId, seq: int) -> str:
        return self._key(f"up/{node}/{seq:010d}.json")

    def _down(self, name: str) -> str:
        return self._key(f"down/{name}.json")


def _grant_name(node: NodeId) -> str:
    return f"grants/{node}"


def _parse(data: bytes, *, node: NodeId, seq: int) -> NodeReport | None:
    """Return the report in an object; None for no report, or one that does not say what its key does."""
    try:
        report = codec.from_json(NodeReport, data)
    except ValidationError:
        return None
    return report if (report.node, report.seq) == (node, seq) else None
