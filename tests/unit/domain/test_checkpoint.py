from __future__ import annotations

from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, VerifyDepth


def test_a_checkpoint_is_complete_unless_a_reason_says_otherwise():
    assert CheckpointRef(step=1, path="/c", format="dcp").complete
    assert not CheckpointRef(step=1, path="/c", format="dcp", torn_reason=".metadata is missing").complete


def test_an_empty_reason_is_a_reason():
    assert not CheckpointRef(step=1, path="/c", format="dcp", torn_reason="").complete


def test_the_two_verdicts_are_told_apart_by_their_kind():
    assert Sound(depth=VerifyDepth.LISTING, num_bytes=0, digest="").kind != Damaged(reason="").kind
