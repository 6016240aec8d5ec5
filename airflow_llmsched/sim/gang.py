"""One simulated gang: its ranks, and how it comes to an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus, NodeStatus, RankEnd
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.sim.world import SimWorld

LOG_TAIL_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a gang ends, fixed when its end begins; the phase shows it once no rank is left."""

    phase: GangPhase
    reason: str
    fault: FaultKind | None = None
    first_end: RankEnd | None = None
    nodes: Mapping[NodeId, GangPhase] = field(default_factory=dict)


class SimGang:
    """Ranks start together, and the end of one is the end of all."""

    def __init__(self, world: SimWorld, spec: GangSpec, handle: GangHandle) -> None:
        self.world = world
        self.spec = spec
        self.handle = handle
        self.phase = GangPhase.STARTING
        self.submitted_at_s = world.time_s
        self.started_at_s: float | None = None
        self.ended_at_s: float | None = None
        self.alive: set[int] = set()
        self.zombies: set[int] = set()
        self.ignores_sigterm: set[int] = set()
        self.said: dict[int, str] = {}
        self.notices: dict[NodeId, float] = {}
        self.ending: Ending | None = None
        self.unreachable: set[NodeId] = set()

    @property
    def steady(self) -> bool:
        """Whether the gang runs and its end has not begun."""
        return self.phase is GangPhase.RUNNING and self.ending is None

    def run(self) -> None:
        """All ranks start."""
        if self.ending is None:
            self.phase = GangPhase.RUNNING
            self.started_at_s = self.world.time_s
            self.alive = {slot.rank for slot in self.spec.placement.slots}

    def exit(self, rank: int, *, exit_code: int | None, signal_name: str = "", signal: int | None = None) -> None:
        """One rank ends by itself."""
        if not self.steady or rank not in self.alive:
            return
        self.alive.discard(rank)
        node = self.spec.placement.slots[rank].node
        tail = "\n".join(self.said.get(rank, "").splitlines()[-LOG_TAIL_LINES:])
        end = RankEnd(rank=rank, node=node, exit_code=exit_code, signal=signal, at_s=self.world.time_s, log_tail=tail)
        if exit_code == 0:
            self._left(end)
            return
        how = f"was killed by {signal_name}" if signal is not None else f"exited with code {exit_code}"
        self.fall(
            Ending(
                phase=GangPhase.FAILED,
                reason=f"rank {rank} on {node} {how}",
                fault=FaultKind.RANK_FAILED,
                first_end=end,
                nodes={node: GangPhase.FAILED},
            ),
            grace_s=self.spec.grace_s,
        )

    def _left(self, end: RankEnd) -> None:
        if not self.alive:
            self.fall(Ending(phase=GangPhase.SUCCEEDED, reason=""), grace_s=0.0)
            return

        def still_waiting() -> None:
            if self.steady:
                ending = Ending(
                    phase=GangPhase.FAILED,
                    reason=f"rank {end.rank} on {end.node} exited 0 while {len(self.alive)} ranks ran on",
                    fault=FaultKind.RANK_EXITED_EARLY,
                    first_end=end,
                    nodes={end.node: GangPhase.FAILED},
                )
                self.fall(ending, grace_s=self.spec.grace_s)

        self.world.after(self.spec.exit_grace_s, still_waiting)

    def fall(self, ending: Ending, *, grace_s: float, gone: Sequence[int] = (), unseen: Sequence[int] = ()) -> None:
        """Begin the end: ranks in ``gone`` vanish, the others get SIGTERM, and SIGKILL after ``grace_s``.

        Of those gone, the ones in ``unseen`` only vanish from sight: they live on until :meth:`lay` ends them.
        """
        if self.ending is not None:
            return
        self.ending = ending
        self.zombies = self.alive & set(unseen)
        self.alive = (self.alive & self.ignores_sigterm) - set(gone)
        if self.alive:
            self.world.after(grace_s, self._finish)
        else:
            self._finish()

    def lay(self, ranks: Sequence[int]) -> None:
        """End ranks that lived on unseen."""
        self.zombies -= set(ranks)

    def status(self) -> GangStatus:
        """Return the gang as the engine would show it."""
        ended = self.phase.ended
        ending = self.ending if ended else None
        return GangStatus(
            phase=self.phase,
            observed_at_s=self.world.time_s,
            nodes=tuple(self._node_status(node, ending) for node in self.spec.placement.nodes),
            reason=ending.reason if ending else "",
            first_end=ending.first_end if ending else None,
            fault=ending.fault if ending else None,
            started_at_s=self.started_at_s,
            ended_at_s=self.ended_at_s,
            unconfirmed_nodes=self._unconfirmed_nodes() if ended else (),
        )

    def _node_status(self, node: NodeId, ending: Ending | None) -> NodeStatus:
        phase = self.phase
        if ending is not None and phase is not GangPhase.SUCCEEDED:
            phase = ending.nodes.get(node, GangPhase.STOPPED)
        return NodeStatus(node=node, phase=phase, notice_deadline_s=self.notices.get(node))

    def _unconfirmed_nodes(self) -> tuple[NodeId, ...]:
        """The platform sees no difference between a node that is dead and one that it cannot reach."""
        return tuple(node for node in self.spec.placement.nodes if node in self.unreachable)

    def _finish(self) -> None:
        if self.ending is not None and not self.phase.ended:
            self.alive = set()
            self.phase = self.ending.phase
            self.ended_at_s = self.world.time_s
