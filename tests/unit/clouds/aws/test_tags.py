from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.clouds.aws import tags
from airflow_llmsched.clouds.aws.tags import LeaseTags
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
EC2_VALUE = re.compile(r"[\w\s+\-=._:/@]{0,256}", re.ASCII)


def said(*, dag_id: str = "pretrain", run_id: str = "manual__1", **changes: object) -> LeaseTags:
    pool = Pool(
        cloud="aws", region="eu-west-1", zone="eu-west-1b", shape="p5.48xlarge", capacity_type=CapacityType.SPOT
    )
    fields: dict = {
        "key": LeaseKey(run=RUN, generation=2, rental=13),
        "origin": RunOrigin(deployment_id="d" * 32, run=RUN, dag_id=dag_id, run_id=run_id),
        "pool": pool,
        "num_nodes": 16,
        "created_at_s": 1_750_000_000.0,
        "expires_at_s": 1_750_003_600.0,
    }
    return LeaseTags(**{**fields, **changes})


def test_what_is_written_is_read_again() -> None:
    assert tags.read(tags.write(said()), region="eu-west-1") == said()


@given(dag_id=st.text(max_size=250), run_id=st.text(max_size=250))
def test_any_id_of_airflow_s_comes_back_and_fits_what_ec2_takes(dag_id: str, run_id: str) -> None:
    wanted = said(dag_id=dag_id, run_id=run_id)
    written = tags.write(wanted)
    assert tags.read(written, region="eu-west-1") == wanted
    assert all(EC2_VALUE.fullmatch(value) for value in written.values())
    assert all(len(name) <= 128 and "/" not in name for name in written)
    assert len(written) <= 50


def test_a_plain_id_stays_legible_on_the_bill() -> None:
    written = tags.write(said(dag_id="Pre-train.ä", run_id="manual__2026-11-29T21:00:00+00:00"))
    assert written[tags.DAG_ID] == "Pre-train.=C3=A4"
    assert written[tags.RUN_ID] == "manual__2026-11-29T21:00:00+00:00"


def test_an_expiry_is_rounded_up_so_that_nothing_ends_too_early() -> None:
    assert tags.write(said(expires_at_s=99.2))[tags.EXPIRES] == "100"


def test_tags_of_others_are_none_of_ours() -> None:
    assert tags.read({}, region="eu-west-1") is None
    assert tags.read({tags.LEASE: "something else"}, region="eu-west-1") is None


def test_a_lease_whose_other_tags_were_removed_by_hand_is_still_ours_and_has_expired() -> None:
    read = tags.read({tags.LEASE: f"{RUN}-g2-r13", tags.CAPACITY: "gold", tags.EXPIRES: "soon"}, region="eu-west-1")
    assert read is not None
    assert (read.key, read.expires_at_s, read.num_nodes) == (said().key, 0.0, 0)
    assert read.pool.capacity_type is CapacityType.ON_DEMAND


def test_a_key_is_read_from_its_name() -> None:
    assert tags.key_of(said().key.name) == said().key
    with pytest.raises(InternalError, match="not the name of a lease key"):
        tags.key_of("ls-a-g1-a1")


def test_pairs_are_in_order_so_that_a_repeated_call_is_the_same() -> None:
    assert tags.pairs({"b": "2", "a": "1"}) == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]
    assert tags.unpaired(tags.pairs({"b": "2", "a": "1"})) == {"a": "1", "b": "2"}
    assert tags.on_each(["fleet"], {"a": "1"}) == [{"ResourceType": "fleet", "Tags": [{"Key": "a", "Value": "1"}]}]
