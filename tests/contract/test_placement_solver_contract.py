"""Every placement solver that is registered passes the same contract, whoever brought it."""

from __future__ import annotations

import pytest

from airflow_llmsched.ports import PlacementSolver
from airflow_llmsched.registry import AdapterGroup, load, names
from airflow_llmsched.testing.solver_contract import PlacementSolverContract


@pytest.fixture(params=names(AdapterGroup.PLACEMENT_SOLVERS))
def registered(request: pytest.FixtureRequest) -> PlacementSolver:
    solver: PlacementSolver = load(AdapterGroup.PLACEMENT_SOLVERS, request.param)()
    return solver


class TestRegisteredSolvers(PlacementSolverContract):
    @pytest.fixture
    def solver(self, registered: PlacementSolver) -> PlacementSolver:
        return registered
