"""Plans a run for the node shapes that its clouds offer, once: each takes a second or two, and tasks come again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched import __version__, codec
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityWish, WorkloadSpec
from airflow_llmsched.errors import DataError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.clouds import open_cloud
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.shape_arguments import ShapeNeeds, Shapes, is_told, needs_of

FILE = "shape-needs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What was worked out, and the digest of what it was worked out from."""

    asked_sha256: str
    by_shape: Mapping[str, tuple[ShapeNeed, ...]]
    refused: Mapping[str, str] = field(default_factory=dict)


def needs_in(
    scope: RunScope | None,
    shapes: Shapes | None,
    spec: WorkloadSpec | None,
    *,
    clouds: Mapping[str, Mapping[str, Any]],
    wish: CapacityWish,
) -> ShapeNeeds:
    """Return what the run takes of each shape (``needs_of``); without ``shapes``, of those that its clouds offer now.

    Plans reckon with what ``llmsched calibrate`` kept at the state root. What had to be planned is kept in the run's
    folder, and taken from there for the same question. Raises as ``needs_of``, ``CouldNotLookError`` when a cloud could
    not be asked, ``StoreError``.
    """
    if scope is None or spec is None or spec.model is None or is_told(shapes):
        return needs_of(shapes, spec)
    calibration = calibration_file.load(open_store(state_root()))
    asked = [codec.to_plain(each) for each in (spec, shapes, clouds, wish, calibration)]
    digest = hashlib.sha256(codec.to_json([__version__, *asked])).hexdigest()
    try:
        known = run_files.read(scope, FILE, Remembered, made_by="this task")
        if known.asked_sha256 == digest:
            return ShapeNeeds(by_shape=known.by_shape, refused=known.refused)
    except DataError:
        pass  # nobody has asked yet
    needs = needs_of(shapes or _offered(clouds, wish), spec, calibration=calibration)
    run_files.write(scope, FILE, Remembered(asked_sha256=digest, by_shape=needs.by_shape, refused=needs.refused))
    return needs


def _offered(clouds: Mapping[str, Mapping[str, Any]], wish: CapacityWish) -> list[str]:
    """Return which of the shapes that the planner knows any of the clouds offers; all, where none offers any."""
    need = Requirement(by_shape={name: ShapeNeed(num_nodes=1, work_s=0.0) for name in node_shapes()}, wish=wish)
    asked = [open_cloud(name, options) for name, options in clouds.items() if not wish.clouds or name in wish.clouds]
    found = {offer.pool.shape for cloud in asked for offer in cloud.offers(need)}
    return sorted(found) or sorted(node_shapes())
