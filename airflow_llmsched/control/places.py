"""Where a run's gangs save, on clusters that do not all see one storage. Pure: paths are compared, not looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """The folder below which a run saves in one storage: ``root`` as control sees it, ``node_root`` as nodes do.

    ``mount`` is a folder that is there while the storage is; empty: nobody can tell a storage that is away from an
    empty one. ``storage`` is its name, empty for what everybody sees.
    """

    root: str
    node_root: str
    storage: str = ""
    mount: str = ""

    def as_nodes_see(self, path: str) -> str:
        """Return what nodes call a path that control sees in this place; any other is the same to them."""
        return moved(path, self.root, self.node_root)


class CheckpointPlaces:
    """The places of one run: by cluster, and one for nodes of no cluster, or of one without a storage of its own.

    A region of a cloud is a cluster of machines that come and go (:func:`region_name`): ``cluster_named`` says in which
    a node is.
    """

    def __init__(
        self,
        default_root: str,
        by_cluster: Mapping[str, CheckpointPlace],
        *,
        cluster_named: Callable[[NodeId], str] = cluster_of,
    ) -> None:
        self._default = CheckpointPlace(root=default_root, node_root=default_root)
        self._by_cluster = by_cluster
        self._cluster_named = cluster_named
        self._all = tuple({place.root: place for place in (self._default, *by_cluster.values())}.values())

    @property
    def all(self) -> tuple[CheckpointPlace, ...]:
        """Return each storage once."""
        return self._all

    def of(self, plan: Plan) -> CheckpointPlace:
        """Return where gangs of ``plan`` save."""
        return self.of_cluster(self._cluster_named(plan.placement.nodes[0]))

    def of_cluster(self, cluster: str) -> CheckpointPlace:
        """Return where gangs on ``cluster`` save; empty: on no cluster."""
        return self._by_cluster.get(cluster, self._default)

    def at(self, root: str) -> CheckpointPlace | None:
        """Return the place whose folder ``root`` is, None for one that is in use no more."""
        return next((place for place in self._all if place.root == root), None)

    def holding(self, path: str) -> CheckpointPlace | None:
        """Return the place that ``path`` lies in, as control sees it."""
        return next((place for place in self._all if is_below(path, place.root)), None)

    def storage_of(self, checkpoint: CheckpointRef | None) -> str:
        """Return the name of the storage that a checkpoint lies in; empty: none of its own, or there is none."""
        place = None if checkpoint is None else self.holding(checkpoint.path)
        return "" if place is None else place.storage


def region_name(cloud: str, region: str) -> str:
    """Return what a cloud's region is called among clusters, whose own names hold no slash."""
    return f"{cloud}/{region}"


def is_below(path: str, root: str) -> bool:
    """Whether ``path`` lies in the folder ``root``."""
    return path.startswith(f"{root.rstrip('/')}/")


def moved(path: str, root: str, other_root: str) -> str:
    """Return where the same lies below ``other_root`` that lies at ``path`` below ``root``; ``path`` if it does not."""
    if not is_below(path, root):
        return path
    return f"{other_root.rstrip('/')}/{path.removeprefix(root.rstrip('/')).lstrip('/')}"
