from __future__ import annotations

import json

import pytest

from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.provider.checkpoints import newest_complete
from tests.support.checkpoint_files import save_dcp, save_hf


@pytest.fixture
def roots(tmp_path):
    """Two roots: steps 100 and 300 in the first, 200 in the second."""
    for name, step in (("a", 100), ("a", 300), ("b", 200)):
        save_dcp(tmp_path / name / f"step-{step:08d}")
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def test_the_highest_complete_step_of_all_roots_is_found(roots):
    assert newest_complete(roots, "dcp", 0)["step"] == 300
    assert newest_complete(roots[::-1], "dcp", 0)["step"] == 300
    assert newest_complete(roots[1:], "dcp", 0)["step"] == 200


def test_a_string_is_one_root(roots):
    found = newest_complete(roots[1], "dcp", 0)
    assert found["path"] == f"{roots[1]}/step-00000200"
    assert found["format"] == "dcp"
    assert json.loads(json.dumps(found)) == found


def test_a_step_below_the_floor_does_not_count(roots):
    assert newest_complete(roots, "dcp", 300)["step"] == 300
    assert newest_complete(roots, "dcp", 301) is None


def test_a_torn_checkpoint_does_not_count(roots, tmp_path):
    (tmp_path / "a" / "step-00000300" / ".metadata").unlink()
    assert newest_complete(roots, "dcp", 0)["step"] == 200


def test_the_latest_attempts_newest_counts_not_what_an_earlier_one_saved_late(tmp_path):
    for name, step in (("g0001-a0001", 300), ("g0001-a0002", 200), ("g0001-a0002", 250)):
        save_dcp(tmp_path / name / f"step-{step:08d}")
    found = newest_complete(str(tmp_path), "dcp", 0)
    assert (found["step"], found["saved_by"]) == (250, {"generation": 1, "attempt": 2})
    assert newest_complete(str(tmp_path), "dcp", 251) is None
    (tmp_path / "g0001-a0003" / "step-00000400").mkdir(parents=True)  # torn: the attempt has none yet
    assert newest_complete(str(tmp_path), "dcp", 0)["step"] == 250
    save_dcp(tmp_path / "step-00000500")  # by a trainer that has one path for all, or by someone's hand
    assert newest_complete(str(tmp_path), "dcp", 0)["step"] == 500


def test_a_root_that_is_not_there_yet_holds_nothing(tmp_path):
    assert newest_complete(str(tmp_path / "later"), "dcp", 0) is None


def test_a_root_that_cannot_be_read_is_logged_and_the_others_are_looked_at(roots, monkeypatch, caplog):
    scan = DcpFormat.scan

    def partly_blind(self, root):
        if root == roots[0]:
            raise CouldNotLookError("no answer from storage")
        return scan(self, root)

    monkeypatch.setattr(DcpFormat, "scan", partly_blind)
    assert newest_complete(roots, "dcp", 0)["step"] == 200
    assert "no answer from storage" in caplog.text


def test_the_format_is_the_one_asked_for(tmp_path):
    save_hf(tmp_path / "checkpoint-7")
    assert newest_complete(str(tmp_path), "hf_trainer", 0)["step"] == 7
    assert newest_complete(str(tmp_path), "dcp", 0) is None
    with pytest.raises(SpecError, match="dcp"):
        newest_complete(str(tmp_path), "dpc", 0)
