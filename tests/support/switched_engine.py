"""A simulated engine that can prove of nodes it does not see that they are off."""

from __future__ import annotations

from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.sim.engine import SimEngine


class SwitchedEngine(SimEngine):
    """One that can turn ``switched`` nodes off when it does not see them."""

    switched: frozenset[NodeId] = frozenset()
    num_fenced = 0

    def fence(self, handle: GangHandle) -> frozenset[NodeId]:
        gang = self._gangs[handle.key.name]
        if not gang.phase.ended:
            return frozenset()
        for node in gang.unreachable & self.switched:
            self.num_fenced += 1
            gang.lay([slot.rank for slot in gang.spec.placement.on(node)])
            gang.unreachable.discard(node)
        return frozenset(gang.spec.placement.nodes) - gang.unreachable
