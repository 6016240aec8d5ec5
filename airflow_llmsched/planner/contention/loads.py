"""What a gang puts on each link of the network in a step. Pure.

A link is what joins a domain (a node, a rack, a block) to the rest of the domain around it, one way; it carries what
leaves the domain. Axes: R = rank, L = level, D = domain of a level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.graphs.job_graph import JobGraph


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LinkId:
    """The link above one domain: the depth of its level, and the domain's number there, as in the cluster's graph."""

    depth: int
    domain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What one gang sends over one link in a step, and how fast it would if it had the link to itself."""

    bytes_per_step: float
    alone_bytes_per_s: float

    @property
    def active_s(self) -> float:
        """Seconds of a step in which the gang sends there, alone."""
        return self.bytes_per_step / self.alone_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GangLoad:
    """A gang in its steps: how long one takes by itself, and what it puts on each link it uses."""

    name: str
    step_s: float
    uses: Mapping[LinkId, LinkUse]

    def duty_ratio(self, link: LinkId) -> float:
        """Return the share of a step in which it sends over a link."""
        return min(1.0, self.uses[link].active_s / self.step_s)


def gang_load(name: str, job: JobGraph, placement: Placement, cluster: ClusterGraph, *, step_s: float) -> GangLoad:
    """Return what a gang puts on the links above the domains that it is in.

    Alone it sends as fast as the cards of its ranks in the domain can together, and the link allows: rates of levels
    are what is left when all accelerators send. ``step_s`` is of a gang that has its links to itself.

    Raises:
        KeyError: a node of the placement is not in the cluster.
        ValueError: the placement has another number of ranks than the job.
    """
    if placement.world_size != job.num_ranks:
        raise ValueError(f"{name}: {placement.world_size} ranks are placed, the job has {job.num_ranks}")
    uses = dict(_uses(job, placement, cluster))
    return GangLoad(name=name, step_s=step_s, uses=uses)


def _uses(job: JobGraph, placement: Placement, cluster: ClusterGraph) -> Iterator[tuple[LinkId, LinkUse]]:
    edges = job.edges()
    domain_LR = cluster.domains_of([slot.node for slot in placement.slots])
    for depth, domain_R in enumerate(domain_LR):
        capacity_D = cluster.uplink_bytes_per_s(depth)
        sent_D = edges.between(domain_R)
        ranks_D = np.bincount(domain_R)
        for domain in np.flatnonzero(sent_D).tolist():
            if capacity_D[domain] > 0:
                alone = min(float(capacity_D[domain]), float(ranks_D[domain]) * cluster.own_bytes_per_s)
                use = LinkUse(bytes_per_step=float(sent_D[domain]), alone_bytes_per_s=alone)
                yield LinkId(depth=depth, domain=domain), use
