from __future__ import annotations

from airflow_llmsched.control.places import CheckpointPlace, CheckpointPlaces, is_below, moved, region_name
from airflow_llmsched.domain.checkpoint import CheckpointRef
from tests.support.sim_house import plan_of

SCRATCH = CheckpointPlace(root="/mnt/scratch/run", node_root="/scratch/run", storage="scratch", mount="/mnt/scratch")


def test_a_gang_saves_where_its_cluster_does_and_any_other_in_the_runs_own_folder() -> None:
    places = CheckpointPlaces("/state/run", {"a": SCRATCH})
    assert places.of(plan_of(("a/n0", 2))) == SCRATCH
    for plan in (plan_of(("b/n0", 2)), plan_of(("n0", 2))):
        assert (places.of(plan).root, places.of(plan).node_root) == ("/state/run", "/state/run")


def test_clusters_that_share_a_storage_are_one_place() -> None:
    elsewhere = CheckpointPlace(root=SCRATCH.root, node_root="/other/run", storage="scratch", mount="/mnt/scratch")
    places = CheckpointPlaces("/state/run", {"a": SCRATCH, "b": elsewhere})
    assert [place.root for place in places.all] == ["/state/run", "/mnt/scratch/run"]
    assert places.of_cluster("b").as_nodes_see("/mnt/scratch/run/g1/s") == "/other/run/g1/s"


def test_machines_of_a_region_save_where_that_region_does() -> None:
    west = CheckpointPlace(root="/mnt/west/run", node_root="/mnt/west/run", storage="aws/us-west-2")
    regions = {"i-1": region_name("aws", "us-west-2"), "i-2": region_name("aws", "us-east-1")}
    places = CheckpointPlaces("/state/run", {"aws/us-west-2": west}, cluster_named=lambda node: regions[node])
    assert places.of(plan_of(("i-1", 2))) == west
    assert places.of(plan_of(("i-2", 2))).root == "/state/run"


def test_a_path_is_told_to_nodes_as_they_see_it_and_any_other_as_it_is() -> None:
    assert SCRATCH.as_nodes_see("/mnt/scratch/run/g0001-a0001/step-10") == "/scratch/run/g0001-a0001/step-10"
    assert SCRATCH.as_nodes_see("/mnt/scratch/runaway/step-10") == "/mnt/scratch/runaway/step-10"


def test_the_place_that_holds_a_path_is_found_by_whole_names() -> None:
    places = CheckpointPlaces("/state/run", {"a": SCRATCH})
    assert places.holding("/mnt/scratch/run/x") == SCRATCH
    assert places.holding("/mnt/scratch/run2/x") is None
    assert places.at("/mnt/scratch/run") == SCRATCH
    assert places.at("/mnt/scratch") is None


def test_paths_are_below_folders_with_or_without_a_last_slash() -> None:
    assert is_below("/a/b/c", "/a/b/")
    assert not is_below("/a/b", "/a/b")
    assert moved("/a/b/c", "/a/b/", "/x/") == "/x/c"


def test_where_a_checkpoint_lies_is_told_by_its_path() -> None:
    places = CheckpointPlaces("/state/run", {"a": SCRATCH})

    def storage_of(path: str) -> str:
        return places.storage_of(CheckpointRef(step=1, path=path, format="dcp"))

    assert [storage_of(f"{root}/step-1") for root in ("/mnt/scratch/run", "/state/run", "/gone")] == ["scratch", "", ""]
    assert places.storage_of(None) == ""
