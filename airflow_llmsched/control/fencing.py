"""How long a successor waits for the agents of a gang that ended unseen. Knows no journal.

An engine that cannot see a node says that a gang is lost while ranks of it may be alive there. Their agent ends them
when its lease runs out. So before anything else of the run is launched, the lease is revoked, and the last one that can
have been honoured is waited out, with the grace the agent gives its ranks and what clocks may differ. Where the engine
proves that those nodes are off, nothing is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from airflow_llmsched.control import events as ev
from airflow_llmsched.domain.gang import GangHandle, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.ports import Clock, Engine, FencingEngine, RunChannel

_REVOKE = EffectPoint("run.revoke")

log = logging.getLogger(__name__)

KILL_S = 5.0
"""What an agent may take beyond the grace to have its ranks ended: the same as an engine's ``stop``."""

LOOK_AGAIN_S = 30.0
"""How soon an engine is asked again for a proof: a cloud takes a minute or so to turn a machine off that it took."""

CLOCK_SKEW_S = 10.0
"""How far a node's clock may be behind control's. Clocks kept by NTP differ by much less."""


class Fences:
    """Looks for gangs of one run that ended without a witness, and says until when they may have ranks.

    Without a lease (``lease_s`` None) agents never fence themselves: there is nothing to wait for, and whether a lost
    node is gone rests on the engine's word.
    """

    def __init__(
        self,
        *,
        run: RunKey,
        lease_s: float | None,
        grace_s: float,
        engine: Engine,
        open_channel: Callable[[str], RunChannel],
        channel_root_of: Callable[[AttemptKey], str],
        clock: Clock,
    ) -> None:
        self._run = run
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._engine = engine
        self._open_channel = open_channel
        self._channel_root_of = channel_root_of
        self._clock = clock

    def awaited(self, known: Sequence[str] = ()) -> ev.FenceAwaited | None:
        """Return until when to wait, None when nothing of the run can be alive unseen.

        ``known`` are channels of gangs that ended unconfirmed, whether or not the engine remembers them. Raises
        ``CouldNotLookError`` or ``StoreError``: what cannot be revoked is not given up. Safe to repeat: a lease that
        is revoked stays so, and the answer the same.
        """
        if self._lease_s is None:
            return None
        gangs = self._gangs()
        unseen = [root for root, (_, status) in gangs.items() if status.unconfirmed_nodes]
        now_s = self._clock.now_s()
        ends_s = {
            root: self._end_s(root, at_s=now_s, lease_s=self._lease_s) for root in dict.fromkeys([*known, *unseen])
        }
        awaited_s = {
            root: end_s for root, end_s in ends_s.items() if now_s < end_s and not self._is_off(gangs.get(root))
        }
        if not awaited_s:
            return None
        nodes = dict.fromkeys(node for root in awaited_s if root in gangs for node in gangs[root][1].unconfirmed_nodes)
        until_s = max(awaited_s.values())
        again_at_s = min(until_s, now_s + LOOK_AGAIN_S) if isinstance(self._engine, FencingEngine) else None
        return ev.FenceAwaited(at_s=now_s, until_s=until_s, again_at_s=again_at_s, nodes=tuple(nodes))

    def _end_s(self, root: str, *, at_s: float, lease_s: float) -> float:
        """Return until when agents of a channel may have ranks alive, none being renewed from now on."""
        return self._revoke(root, at_s=at_s, lease_s=lease_s) + self._grace_s + KILL_S + CLOCK_SKEW_S

    @_REVOKE
    def _revoke(self, root: str, *, at_s: float, lease_s: float) -> float:
        return self._open_channel(root).revoke(at_s=at_s, lease_s=lease_s)

    def _gangs(self) -> dict[str, tuple[GangHandle, GangStatus]]:
        """Return the run's gangs by their channels."""
        handles = self._engine.find(self._run)
        statuses = self._engine.poll(handles) if handles else {}
        return {self._channel_root_of(handle.key): (handle, status) for handle, status in statuses.items()}

    def _is_off(self, gang: tuple[GangHandle, GangStatus] | None) -> bool:
        """Whether the engine proves of every node of a gang that nothing of it can be alive there."""
        if gang is None or not isinstance(self._engine, FencingEngine):
            return False
        handle, status = gang
        nodes: frozenset[NodeId] = frozenset(node.node for node in status.nodes)
        is_off = bool(nodes) and nodes <= self._engine.fence(handle)
        if is_off:
            log.info("nothing of %s can be alive: its nodes are off, and no lease is waited for", handle.key.name)
        return is_off
