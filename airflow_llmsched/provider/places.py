"""Where a run saves: by default one folder, and on a fleet one in each storage that the fleet file names."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_llmsched.control.open_fleet import names_cluster
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.domain.fleet import Cluster, Fleet
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.provider.engine import deployment_fleet
from airflow_llmsched.provider.run_scope import RunScope


def checkpoint_root(scope: RunScope, spec: WorkloadSpec) -> str:
    """Return where this run saves: below the spec's root, a folder for each run; by default in the run's own folder.

    Clusters with a storage of their own save there instead (:func:`cluster_places`).
    """
    if spec.checkpoint.root:
        return f"{spec.checkpoint.root.rstrip('/')}/{scope.run_key}"
    return str(scope.directory / "checkpoints")


def cluster_places(run: RunKey, *, engine: str) -> dict[str, CheckpointPlace]:
    """Return where a run saves on each cluster with a storage of its own; on none where ``engine`` is an adapter.

    Raises ``SpecError`` for a fleet file with mistakes.
    """
    fleet = deployment_fleet()
    if fleet is None or not names_cluster(engine, fleet):
        return {}
    return {each.name: _place(each, fleet, run) for each in fleet.clusters if each.shared_storage}


def region_places(run: RunKey, storages: Mapping[str, str]) -> dict[str, CheckpointPlace]:
    """Return where a run saves in each region that it may rent in, by ``cloud/region``.

    ``storages`` are folders that the region's machines and Airflow's workers see by the same path.
    """
    return {
        name: CheckpointPlace(root=f"{folder}/{run}", node_root=f"{folder}/{run}", storage=name, mount=folder)
        for name, folder in storages.items()
    }


def storage_roots(run: RunKey) -> tuple[str, ...]:
    """Return where a run may have saved in the fleet's storages, whatever it ran on. Raises ``SpecError``."""
    fleet = deployment_fleet()
    return () if fleet is None else tuple(f"{each.mounted_at}/{run}" for each in fleet.storages)


def _place(cluster: Cluster, fleet: Fleet, run: RunKey) -> CheckpointPlace:
    storage = fleet.storage(cluster.shared_storage)
    mounted_at = "" if storage is None else storage.mounted_at  # the file's own rules see to it that there is one
    return CheckpointPlace(
        root=f"{mounted_at}/{run}",
        node_root=f"{cluster.checkpoint_root or mounted_at}/{run}",
        storage=cluster.shared_storage,
        mount=mounted_at,
    )
