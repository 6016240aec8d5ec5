from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_llmsched.domain.fleet import Cluster
from airflow_llmsched.specs.fleet_schema import ClusterBlock, StorageBlock


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a" * 33, "a b", "a\n"])
def test_a_cluster_is_named_by_a_short_word_that_fits_into_paths_and_names_of_nodes(name: str) -> None:
    with pytest.raises(ValidationError, match="a-z"):
        ClusterBlock(name=name, engine="local")


@pytest.mark.parametrize("path", ["relative", "/mnt/../etc", ""])
def test_a_storage_is_mounted_at_an_absolute_path(path: str) -> None:
    with pytest.raises(ValidationError, match="absolute"):
        StorageBlock(name="disk", mounted_at=path)


def test_defaults_are_those_of_a_cluster_made_in_code() -> None:
    block, made = ClusterBlock(name="a", engine="local"), Cluster(name="a", engine="local")
    assert (block.silent_after, block.preference, block.usd_per_hour) == (
        made.silent_after_s,
        made.preference,
        made.usd_per_hour,
    )
