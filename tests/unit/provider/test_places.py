from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.domain.capacity import Requirement
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.provider import gang_run
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.places import checkpoint_root, cluster_places, region_places, storage_roots
from airflow_llmsched.provider.rental_policy import PolicySettings
from airflow_llmsched.provider.rentals import CapacityRequest, RentalSettings
from airflow_llmsched.provider.run_files import read_spec

RUN = RunKey("ls-x")


@pytest.fixture
def fleet_file(state_root, tmp_path, monkeypatch):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "version: 1\n"
        "storages:\n"
        "  - {name: scratch, mounted_at: /mnt/scratch}\n"
        "  - {name: project, mounted_at: /mnt/project}\n"
        "clusters:\n"
        "  - {name: a, engine: local, shared_storage: scratch, checkpoint_root: /scratch}\n"
        "  - {name: b, engine: local, shared_storage: project}\n"
        "  - {name: c, engine: local}\n"
    )
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(path))


def test_a_run_saves_in_the_storage_of_the_cluster_it_is_on(fleet_file):
    assert cluster_places(RUN, engine="fleet") == {
        "a": CheckpointPlace(
            root="/mnt/scratch/ls-x", node_root="/scratch/ls-x", storage="scratch", mount="/mnt/scratch"
        ),
        "b": CheckpointPlace(
            root="/mnt/project/ls-x", node_root="/mnt/project/ls-x", storage="project", mount="/mnt/project"
        ),
    }


def test_a_run_on_an_adapter_has_nothing_to_do_with_the_fleets_storages(fleet_file):
    assert cluster_places(RUN, engine="local") == {}


def test_storages_are_known_without_an_engine(fleet_file):
    assert storage_roots(RUN) == ("/mnt/scratch/ls-x", "/mnt/project/ls-x")


def test_without_a_fleet_there_is_one_folder(pipeline):
    pipeline.run("open_run")
    scope, spec = pipeline.scope, read_spec(pipeline.scope)
    assert storage_roots(RUN) == ()
    assert checkpoint_root(scope, spec) == str(scope.directory / "checkpoints")
    named = replace(spec, checkpoint=replace(spec.checkpoint, root="/data/"))
    assert checkpoint_root(scope, named) == f"/data/{scope.run_key}"


def test_a_region_with_a_storage_has_a_folder_for_each_run_that_workers_and_machines_call_alike():
    (name, place), *others = region_places(RUN, {"aws/us-west-2": "/mnt/west"}).items()
    assert (name, others) == ("aws/us-west-2", [])
    assert place.root == place.node_root == f"/mnt/west/{RUN}"
    assert (place.storage, place.mount) == ("aws/us-west-2", "/mnt/west")


def test_a_run_with_a_rental_policy_saves_where_its_regions_do(pipeline):
    pipeline.prepare()
    scope = pipeline.scope
    request = CapacityRequest(clouds={}, need=Requirement(by_shape={}))
    rental = RentalSettings(scope=scope, purpose="run_gang", request=request)
    policy = PolicySettings(rental=rental, tick_s=1, slack_s=1, changeover_s=1, storages={"aws/us-west-2": "/mnt/west"})
    settings = GangSettings(scope=scope, engine="local", policy=policy)
    places = gang_run._context(settings, read_spec(scope)).places
    assert places["aws/us-west-2"].root == f"/mnt/west/{scope.run_key}"
    assert gang_run._context(replace(settings, policy=None), read_spec(scope)).places == {}
