from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def at_once() -> Iterator[None]:
    """Tasks may come back as soon as they were deferred: no scheduler is here that could mistake a worker's end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__LLMSCHED__MIN_DEFERRAL", "0")
        yield


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
def scope(tmp_path: Path):
    """A run in a state root of its own, started at second 1000."""
    from airflow_llmsched.domain.identity import RunKey
    from airflow_llmsched.provider.run_scope import RunScope

    return RunScope(
        state_root=str(tmp_path),
        run_key=RunKey("ls-" + "a" * 20),
        dag_id="dag",
        run_id="run",
        task_group_id="",
        started_at_s=1000.0,
    )


@pytest.fixture
def sim_cloud():
    """A simulated cloud in real time, which the provider opens as ``sim``: nodes are up, and listed, at once."""
    from tests.support.provider_cloud import opened_by_the_provider, real_time_cloud

    with opened_by_the_provider(real_time_cloud()) as harness:
        yield harness


@pytest.fixture
def make_pipeline(tmp_path: Path, state_root: Path):
    """Makes a pipeline whose spec has blocks changed; whatever it leaves running is ended."""
    from tests.support.pipeline import Pipeline, plain_spec

    made = []

    def make(*, dag_id="plain", **changes):
        made.append(Pipeline(tmp_path, spec=plain_spec(**changes), dag_id=dag_id))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.fixture
def pipeline(make_pipeline):
    """A pipeline to be opened."""
    return make_pipeline()


@pytest.fixture
def slow(make_pipeline):
    """A prepared pipeline whose training would take minutes."""
    return make_pipeline(arguments=("--step-s=60",)).prepare()
