"""Roles within one gang: trainers, and the helpers that start and end with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RoleKind(StrEnum):
    """What a role's processes do."""

    TRAINER = "trainer"
    DATA_LOADER = "data_loader"
    EVALUATOR = "evaluator"
    PARAMETER_SERVER = "parameter_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """One role of the gang; all start or none does. Trainers take their count from the layout (``num_ranks`` None)."""

    kind: RoleKind
    num_ranks: int | None = None
    command: tuple[str, ...] = ()
    accelerators_per_rank: int = 1


def helpers_of(roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
    """Return the roles that are not the trainers'."""
    return tuple(role for role in roles if role.kind is not RoleKind.TRAINER)


def loader_of_replica(replica: int, *, num_loaders: int, num_replicas: int) -> int:
    """Return the index of the first data loader that serves a replica: they share replicas evenly, in order.

    With more loaders than replicas, those up to the next replica's first one serve it as well.
    """
    return replica * num_loaders // num_replicas


def replica_of_loader(loader: int, *, num_loaders: int, num_replicas: int) -> int:
    """Return the first replica that a data loader serves: where it should stand.

    The inverse of :func:`loader_of_replica`: the smallest replica whose loader is ``loader``, or, where replicas have
    several loaders each, the replica whose share it is in.
    """
    if num_loaders <= num_replicas:
        return -(-loader * num_replicas // num_loaders)
    return loader * num_replicas // num_loaders
