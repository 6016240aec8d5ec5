from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.provider.broken_watches import count_broken, forget_broken
from airflow_llmsched.provider.run_scope import RunScope


@pytest.fixture
def scope(tmp_path):
    key = RunKey("ls-" + "a" * 20)
    return RunScope(state_root=str(tmp_path), run_key=key, dag_id="d", run_id="r", task_group_id="", started_at_s=0.0)


def test_failures_in_a_row_add_up(scope):
    assert [count_broken(scope, "train", owner="1") for _ in range(3)] == [1, 2, 3]


def test_a_watch_that_ends_well_starts_the_count_again(scope):
    count_broken(scope, "train", owner="1")
    forget_broken(scope, "train")
    forget_broken(scope, "train")
    assert count_broken(scope, "train", owner="1") == 1


def test_each_try_and_each_gang_counts_for_itself(scope):
    count_broken(scope, "train", owner="1")
    assert count_broken(scope, "evaluate", owner="1") == 1
    assert count_broken(scope, "train", owner="2") == 1


def test_a_damaged_count_starts_again(scope):
    count_broken(scope, "train", owner="1")
    (scope.directory / "tries" / "000000" / "broken-watches-train.json").write_text("{")
    assert count_broken(scope, "train", owner="1") == 1
