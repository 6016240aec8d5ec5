from __future__ import annotations

from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, SavedBy, Sound, VerifyDepth
from airflow_llmsched.domain.identity import AttemptKey, RunKey


def test_a_checkpoint_is_complete_unless_a_reason_says_otherwise():
    assert CheckpointRef(step=1, path="/c", format="dcp").complete
    assert not CheckpointRef(step=1, path="/c", format="dcp", torn_reason=".metadata is missing").complete


def test_an_empty_reason_is_a_reason():
    assert not CheckpointRef(step=1, path="/c", format="dcp", torn_reason="").complete


def test_the_two_verdicts_are_told_apart_by_their_kind():
    assert Sound(depth=VerifyDepth.LISTING, num_bytes=0, digest="").kind != Damaged(reason="").kind


def test_who_saved_is_known_by_the_folder_and_the_later_attempt_is_the_larger():
    key = AttemptKey(run=RunKey("ls-a"), generation=2, attempt=3)
    saved_by = SavedBy.of_key(key)
    assert SavedBy.of_folder(saved_by.folder) == saved_by
    assert SavedBy.of_folder("step-3") is None
    assert SavedBy(generation=1, attempt=9) < saved_by < SavedBy(generation=2, attempt=10)
