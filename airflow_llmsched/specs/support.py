"""What a spec may say but this release cannot do yet. Refused before anything starts: silence would be believed."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError, SpecErrors

_FILTERS = ("clouds", "regions", "jurisdictions", "vendors", "capacity_types")
_HEEDED_BY_FLEETS = ("regions", "jurisdictions")


def unsupported(
    spec: WorkloadSpec, *, rents_capacity: bool = False, chooses_cluster: bool = False
) -> tuple[SpecError, ...]:
    """Return what of ``spec`` would have no effect, or fail only later; empty when all of it can be done.

    ``rents_capacity``: a task of the run rents its machines, and heeds what the spec says of capacity.
    ``chooses_cluster``: the run's engine is a fleet, which heeds what the spec says of regions and jurisdictions.
    """
    heeded = _FILTERS if rents_capacity else _HEEDED_BY_FLEETS if chooses_cluster else ()
    return (*_buckets(spec), *_capacity(spec, heeded))


def require_supported(spec: WorkloadSpec, *, rents_capacity: bool = False, chooses_cluster: bool = False) -> None:
    """Raise ``SpecError`` (``SpecErrors`` for several) for what :func:`unsupported` finds."""
    found = unsupported(spec, rents_capacity=rents_capacity, chooses_cluster=chooses_cluster)
    if found:
        raise found[0] if len(found) == 1 else SpecErrors(list(found))


def _buckets(spec: WorkloadSpec) -> Iterator[SpecError]:
    for path, value in (
        ("data.source", spec.data.source),
        ("checkpoint.root", spec.checkpoint.root),
        ("checkpoint.init_from", spec.checkpoint.init_from),
    ):
        if value is not None and "://" in value:
            yield SpecError(path=path, value=value, hint="buckets cannot be read yet: mount it, and name the folder")


def _capacity(spec: WorkloadSpec, heeded: Collection[str]) -> Iterator[SpecError]:
    for name in _FILTERS:
        value = getattr(spec.capacity, name)
        if value and name not in heeded:
            hint = "nothing rents capacity for this run, so it would not be heeded; take it out, or see rents_capacity"
            yield SpecError(path=f"capacity.{name}", value=[str(each) for each in value], hint=hint)
