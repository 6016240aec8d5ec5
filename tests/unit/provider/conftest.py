from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state root of this test's own."""
    root = tmp_path / "state"
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(root))
    return root


@pytest.fixture(scope="session")
def demo_spec(checkout: Path):
    """The shipped demo's workload."""
    from airflow_llmsched.specs import loader

    return loader.load(checkout / "dags" / "specs" / "byte_gpt_demo.yaml")


@pytest.fixture
def pipeline(tmp_path: Path, state_root: Path):
    """A pipeline to be opened."""
    from tests.support.pipeline import Pipeline

    made = Pipeline(tmp_path)
    yield made
    made.close()
