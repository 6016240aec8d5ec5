"""The channel between simulated agents and control. Agents' reports are made when control reads, up to that instant."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import (
    AgentSpan,
    ChannelCursor,
    CheckpointMark,
    NodeReport,
    RankProgress,
    StepRecord,
)
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.gang import SimGang
from airflow_llmsched.sim.world import SimWorld

_ORDER = EffectPoint("sim.channel.order")
_RENEW = EffectPoint("sim.channel.renew")
_NOTE = EffectPoint("sim.channel.note_extension")
_REVOKE = EffectPoint("sim.channel.revoke")

_FIRST_PID = 1000


class SimLine:
    """Both directions of one attempt's channel."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._gang: SimGang | None = None
        self._reports: dict[NodeId, list[NodeReport]] = {}
        self._steps: list[StepRecord] = []
        self._spans: list[AgentSpan] = []
        self._marks: list[CheckpointMark] = []
        self._progress: tuple[int | None, float] = (None, world.time_s)
        self._speaks = False
        self._ordered_checkpoint = False
        self._noticed: set[NodeId] = set()
        self._closed = False
        self._reported_at_s = float("-inf")
        self.is_frozen = False
        self.stop_reason: str | None = None
        self.lease_until_s: float | None = None
        self.last_extension_s = float("-inf")
        self.revoked_at_s: float | None = None
        self.checkpoint_interval_s: float | None = None

    def open(self, gang: SimGang) -> None:
        """Agents of ``gang`` begin to report."""
        self._gang = gang

    def beat(self, step: int | None) -> None:
        """All ranks show progress now."""
        self._progress = (step, self._world.time_s)
        self._speaks = True

    def step(self, record: StepRecord) -> None:
        """Rank 0 finished a step."""
        self._steps.append(record)

    def span(self, span: AgentSpan) -> None:
        """A rank measured a span."""
        self._spans.append(span)

    def saved(self, mark: CheckpointMark) -> None:
        """The trainer calls a checkpoint durable, which fulfils what had been asked."""
        self._marks.append(mark)
        self._ordered_checkpoint = False

    def freeze(self) -> None:
        """Agents stand still from now on, having said what they had to say."""
        self._flush()
        self.is_frozen = True

    def last_sign_s(self) -> float | None:
        """Return when agents last reported."""
        self._flush()
        return max((report.at_s for reports in self._reports.values() for report in reports[-1:]), default=None)

    def renew(self, until_s: float) -> None:
        """Take a renewal, unless the lease was revoked. As with real agents, an older one takes nothing back."""
        if self.revoked_at_s is None:
            self.lease_until_s = max(until_s, self.lease_until_s or until_s)

    def order_checkpoint(self) -> None:
        """Ask for a save at the next step boundary."""
        self._ordered_checkpoint = True

    def wants_checkpoint(self, gang: SimGang) -> bool:
        """Whether a save is due by order, or because a node has just been given notice."""
        fresh = set(gang.notices) - self._noticed
        self._noticed |= fresh
        return self._ordered_checkpoint or bool(fresh)

    def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Report up to now, then return what comes after ``cursor``."""
        self._flush()
        positions = dict(cursor.positions)
        fresh: list[NodeReport] = []
        for node, reports in self._reports.items():
            fresh += reports[positions.get(node, 0) :]
            positions[node] = len(reports)
        return fresh, ChannelCursor(positions=positions)

    def latest(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Report up to now, then return the last of each node after ``cursor``."""
        fresh, further = self.read(cursor)
        return list({report.node: report for report in fresh}.values()), further

    def _flush(self) -> None:
        gang = self._gang
        if gang is None or self._closed or self.is_frozen:
            return
        at_s = gang.ended_at_s if gang.ended_at_s is not None else self._world.time_s
        if at_s == self._reported_at_s and not (self._steps or self._spans or self._marks):
            return  # agents report once per interval, however often control reads
        self._closed, self._reported_at_s = gang.phase.ended, at_s
        step, heartbeat_s = self._progress
        for index, node in enumerate(gang.spec.placement.nodes):
            slots = gang.spec.placement.on(node)
            mine = {slot.rank for slot in slots}
            reports = self._reports.setdefault(node, [])
            reports.append(
                NodeReport(
                    node=node,
                    seq=len(reports) + 1,
                    at_s=at_s,
                    ranks=tuple(
                        RankProgress(
                            rank=slot.rank,
                            step=step,
                            heartbeat_s=heartbeat_s,
                            pid=_FIRST_PID + slot.rank,
                            speaks=self._speaks,
                        )
                        for slot in slots
                    ),
                    steps=tuple(self._steps) if index == 0 else (),
                    spans=tuple(span for span in self._spans if span.rank in mine),
                    marks=tuple(self._marks) if index == 0 else (),
                )
            )
        self._steps, self._spans, self._marks = [], [], []


class SimChannelHub:
    """All channels of a simulation, by their roots."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._lines: dict[str, SimLine] = {}
        self._blind_until_s = float("-inf")

    def line(self, root: str) -> SimLine:
        """Return the channel below ``root``, made on first use."""
        return self._lines.setdefault(root, SimLine(self._world))

    def open(self, root: str) -> SimChannel:
        """Return control's end of the channel below ``root``."""
        return SimChannel(self, root)

    def blind(self, *, for_s: float) -> None:
        """Make every channel unreadable for a while."""
        self._blind_until_s = self._world.clock.now_s() + for_s

    def look(self, root: str) -> SimLine:
        """Return a channel as it is now. Raises ``CouldNotLookError`` while blind."""
        if self._world.advance() < self._blind_until_s:
            raise CouldNotLookError(f"simulated channel {root} cannot be read now")
        return self.line(root)


class SimChannel:
    """``ports.RunChannel`` and ``ports.ChannelWitness``: control's end."""

    def __init__(self, hub: SimChannelHub, root: str) -> None:
        self._hub = hub
        self._root = root

    def prepare(self, nodes: Sequence[NodeId], *, at_s: float) -> None:
        """Do nothing: simulated agents find their way."""

    def tend(self, cursor: ChannelCursor, *, at_s: float) -> None:
        """Do nothing: a simulated way does not wear out."""

    def order_interval(self, *, interval_s: float) -> None:
        """Ask the trainer to save every ``interval_s`` seconds from now on."""
        line = self._hub.look(self._root)
        with _ORDER:
            line.checkpoint_interval_s = interval_s

    def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return reports after ``cursor``, and the new cursor."""
        return self._hub.look(self._root).read(cursor)

    def latest(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        """Return the newest report of each node after ``cursor``, and the new cursor."""
        return self._hub.look(self._root).latest(cursor)

    def order_checkpoint(self) -> None:
        """Ask all ranks to save at the next step boundary."""
        line = self._hub.look(self._root)
        with _ORDER:
            line.order_checkpoint()

    def order_stop(self, *, reason: str) -> None:
        """Ask all ranks to save and exit 0 at the next step boundary."""
        line = self._hub.look(self._root)
        with _ORDER:
            line.stop_reason = reason

    def renew(self, *, until_s: float) -> None:
        """Let agents keep their ranks until ``until_s``."""
        line = self._hub.look(self._root)
        with _RENEW:
            line.renew(until_s)

    def extend(self, *, until_s: float) -> None:
        """Renew for as long as a hand-over may take."""
        line = self._hub.look(self._root)
        with _NOTE:
            line.last_extension_s = max(line.last_extension_s, until_s)
        with _RENEW:
            line.renew(until_s)

    def revoke(self, *, at_s: float, lease_s: float) -> float:
        """Have agents honour no renewal from now on; return when the last one they can have honoured ends."""
        line = self._hub.look(self._root)
        with _REVOKE:
            line.revoked_at_s = at_s if line.revoked_at_s is None else line.revoked_at_s
        return max(line.revoked_at_s + lease_s, line.last_extension_s)

    def lease_until_s(self) -> float | None:
        """Return until when agents may keep their ranks."""
        return self._hub.look(self._root).lease_until_s

    def last_sign_s(self) -> float | None:
        """Return when agents last reported."""
        return self._hub.look(self._root).last_sign_s()
