"""How long a successor waits for the agents of a gang that ended unseen. Knows no journal.

An engine that cannot see a node says that a gang is lost while ranks of it may be alive there. Their agent ends them
when its lease runs out. So before anything else of the run is launched, the lease is revoked, and the last one that can
have been honoured is waited out, with the grace the agent gives its ranks and what clocks may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_llmsched.control import events as ev
from airflow_llmsched.domain.gang import GangHandle, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.ports import Clock, Engine, RunChannel

_REVOKE = EffectPoint("run.revoke")

KILL_S = 5.0
"""What an agent may take beyond the grace to have its ranks ended: the same as an engine's ``stop``."""

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
        unseen = self._unconfirmed()
        roots = dict.fromkeys([*known, *(self._channel_root_of(handle.key) for handle in unseen)])
        if not roots:
            return None
        now_s = self._clock.now_s()
        last_s = max(self._revoke(root, at_s=now_s, lease_s=self._lease_s) for root in roots)
        until_s = last_s + self._grace_s + KILL_S + CLOCK_SKEW_S
        if now_s >= until_s:
            return None
        nodes: dict[NodeId, None] = {node: None for status in unseen.values() for node in status.unconfirmed_nodes}
        return ev.FenceAwaited(at_s=now_s, until_s=until_s, nodes=tuple(nodes))

    @_REVOKE
    def _revoke(self, root: str, *, at_s: float, lease_s: float) -> float:
        return self._open_channel(root).revoke(at_s=at_s, lease_s=lease_s)

    def _unconfirmed(self) -> dict[GangHandle, GangStatus]:
        handles = self._engine.find(self._run)
        statuses = self._engine.poll(handles) if handles else {}
        return {handle: status for handle, status in statuses.items() if status.unconfirmed_nodes}
