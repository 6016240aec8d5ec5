"""Which card of the network and which NUMA node each rank's accelerator is next to.

As the matrix of a node says (``nvidia-smi topo -m``), where a run has one. Else by the usual wiring of a shape:
accelerators, cards and NUMA nodes in the same order, each card and each NUMA node with an equal share of neighbouring
accelerators, as such matrices show it of DGX and HGX machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.perf.hardware import node_shapes

_NUM_SOCKETS = 2
"""Of every machine in our table that has more than one NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank is. ``numa_node`` and ``socket`` are indexes on its node; all is None where nobody says.

    ``nic`` is a card's index by the usual wiring, and its name where the node's own matrix tells it.
    """

    rank: int
    node: NodeId
    slot: int
    local_rank: int
    nic: int | str | None
    numa_node: int | None

    def socket(self, num_numa_nodes: int) -> int:
        """Return the processor socket that the NUMA node belongs to."""
        return 0 if self.numa_node is None else self.numa_node * min(_NUM_SOCKETS, num_numa_nodes) // num_numa_nodes


def shape_of(run: PlannedRun) -> NodeShape | None:
    """Return the shape of the plan's nodes; None for one that is not in our table."""
    return node_shapes().get(run.node_shape)


def num_numa_nodes(run: PlannedRun) -> int:
    """Return how many NUMA nodes each node has."""
    if run.wiring is not None:
        return 1 + max((gpu.numa_index or 0 for gpu in run.wiring.gpus), default=0)
    shape = shape_of(run)
    return 1 if shape is None else shape.host.num_numa_nodes


def rank_places(run: PlannedRun) -> Iterator[RankPlace]:
    """Yield the places of all ranks, in rank order."""
    beside = _by_shape(shape_of(run)) if run.wiring is None else _by_matrix(run.wiring)
    for each in run.placement.slots if run.placement is not None else ():
        nic, numa_node = beside.get(each.slot, (None, None))
        yield RankPlace(
            rank=each.rank, node=each.node, slot=each.slot, local_rank=each.local_rank, nic=nic, numa_node=numa_node
        )


_Beside = dict[int, tuple[int | str | None, int | None]]


def _by_matrix(wiring: NodeTopology) -> _Beside:
    """Return card and NUMA node beside each slot. Accelerators that are near to the same cards take turns at them."""
    sharing: Counter[tuple[str, ...]] = Counter()
    found: _Beside = {}
    for gpu in wiring.gpus:
        near = wiring.nearest_nics(gpu.index)
        found[gpu.index] = (near[sharing[near] % len(near)] if near else None, gpu.numa_index)
        sharing[near] += 1
    return found


def _by_shape(shape: NodeShape | None) -> _Beside:
    if shape is None:
        return {}
    return {
        slot: (_next_to(slot, shape, shape.num_nics), _next_to(slot, shape, shape.host.num_numa_nodes))
        for slot in range(shape.num_accelerators)
    }


def _next_to(slot: int, shape: NodeShape, number: int) -> int | None:
    return slot * number // shape.num_accelerators if number else None
