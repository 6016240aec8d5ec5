from __future__ import annotations

import pytest

from airflow_llmsched.domain.roles import RoleKind, RoleSpec, helpers_of, loader_of_replica, replica_of_loader


def test_helpers_are_all_roles_but_the_trainers() -> None:
    roles = tuple(RoleSpec(kind=kind) for kind in RoleKind)
    assert [role.kind for role in helpers_of(roles)] == [
        RoleKind.DATA_LOADER,
        RoleKind.EVALUATOR,
        RoleKind.PARAMETER_SERVER,
    ]


@pytest.mark.parametrize(
    ("num_loaders", "num_replicas", "served"),
    [(2, 4, [0, 0, 1, 1]), (4, 4, [0, 1, 2, 3]), (3, 4, [0, 0, 1, 2]), (4, 2, [0, 2]), (1, 3, [0, 0, 0])],
)
def test_replicas_share_loaders_evenly_in_order(num_loaders: int, num_replicas: int, served: list[int]) -> None:
    found = [
        loader_of_replica(replica, num_loaders=num_loaders, num_replicas=num_replicas)
        for replica in range(num_replicas)
    ]
    assert found == served


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
@pytest.mark.parametrize("num_loaders", [1, 2, 3, 5, 8])
def test_a_loader_stands_at_the_first_replica_that_it_serves(num_loaders: int, num_replicas: int) -> None:
    for loader in range(num_loaders):
        home = replica_of_loader(loader, num_loaders=num_loaders, num_replicas=num_replicas)
        first = loader_of_replica(home, num_loaders=num_loaders, num_replicas=num_replicas)
        if num_loaders <= num_replicas:
            assert first == loader
            assert home == 0 or loader_of_replica(home - 1, num_loaders=num_loaders, num_replicas=num_replicas) < loader
        else:
            assert first <= loader
