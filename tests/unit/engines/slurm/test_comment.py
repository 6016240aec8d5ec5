from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.engines.slurm.comment import MAX_COMMENT, Whose, comment_of, whose

RUN = RunKey("ls-abcdefghij0123456789")


def gang(channel_root: str = "/shared/channel", origin: RunOrigin | None = None) -> GangSpec:
    return GangSpec(
        key=AttemptKey(run=RUN, generation=1, attempt=1),
        placement=Placement(slots=(RankSlot(rank=0, node=NodeId("n1"), slot=0, local_rank=0),)),
        layout=ParallelLayout(dp=1),
        command=("true",),
        channel_root=channel_root,
        origin=origin,
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=250)


@given(TEXTS, TEXTS, TEXTS)
def test_what_a_job_says_of_itself_is_read_back_or_left_out_whole(channel: str, dag_id: str, run_id: str) -> None:
    origin = RunOrigin(deployment_id="d", run=RUN, dag_id=dag_id, run_id=run_id)
    comment = comment_of(gang(channel, origin))
    assert len(comment) <= MAX_COMMENT
    assert whose(comment) in (Whose(channel_root=channel, origin=origin), None)
    assert all(letter.isascii() and (letter.isalnum() or letter in ":_-=") for letter in comment)


def test_a_job_without_origin_says_so() -> None:
    assert whose(comment_of(gang())) == Whose(channel_root="/shared/channel", origin=None)


def test_usual_origins_fit() -> None:
    origin = RunOrigin(deployment_id="3c9d" * 8, run=RUN, dag_id="pretrain" * 12, run_id="manual__2026" * 10)
    assert whose(comment_of(gang("s3://bucket/" + "channel/" * 20, origin))) is not None


def test_what_does_not_fit_is_left_out() -> None:
    assert comment_of(replace(gang(), channel_root="/" + "x" * 1000)) == "llmsched:1:"


@pytest.mark.parametrize(
    "comment", ["", "(null)", "my job", "llmsched:1:", "llmsched:1:!!!", "llmsched:1:abcd", "llmsched:2:abcd"]
)
def test_other_comments_are_nobodys(comment: str) -> None:
    assert whose(comment) is None
