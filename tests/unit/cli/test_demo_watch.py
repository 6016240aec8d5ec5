from __future__ import annotations

import pytest

from airflow_llmsched.cli.demo_watch import RunWatcher
from tests.support.demo_run import RUN, RunOnDisk, node_report, view


@pytest.fixture
def on_disk(tmp_path) -> RunOnDisk:
    return RunOnDisk(tmp_path)


def test_a_run_that_has_just_been_opened_is_new_and_has_no_attempt(on_disk):
    run = RunWatcher(on_disk.state_root, RUN).look()
    assert (run.phase, run.current, run.saved, run.done_ratio) == ("new", None, set(), None)


def test_it_shows_ranks_steps_checkpoints_and_phase_as_they_are_reported(on_disk):
    watcher = RunWatcher(on_disk.state_root, RUN)
    on_disk.summarise("watching")
    on_disk.report(node_report("n0", 1, ranks=[0, 1], steps=[1, 2, 3], saved=[2]), node_report("n1", 1, ranks=[2, 3]))
    run = watcher.look()
    assert run.phase == "watching"
    assert run.current.ranks == {0, 1, 2, 3}
    assert (run.current.first_step, run.current.last.step) == (1, 3)
    assert run.saved == {2}
    assert run.done_ratio == pytest.approx(0.03)


def test_it_reads_on_where_it_stopped(on_disk):
    watcher = RunWatcher(on_disk.state_root, RUN)
    on_disk.report(node_report("n0", 1, ranks=[0], steps=[1, 2]))
    watcher.look()
    on_disk.report(node_report("n0", 2, ranks=[0], steps=[3]))
    assert watcher.look().current.last.step == 3


def test_the_newest_attempt_that_reported_is_the_current_one(on_disk):
    watcher = RunWatcher(on_disk.state_root, RUN)
    on_disk.report(node_report("n0", 1, ranks=[0, 1], steps=[9], saved=[5]), attempt=9)
    on_disk.report(node_report("n0", 1, ranks=[0], steps=[6]), attempt=10)
    on_disk.report(attempt=11)
    run = watcher.look()
    assert (run.current.attempt, run.current.last.step, run.saved) == (10, 6, {5})


def test_attempts_of_a_later_generation_are_named_with_it(on_disk):
    on_disk.report(node_report("n0", 1, ranks=[0]), attempt=1, generation=2)
    assert RunWatcher(on_disk.state_root, RUN).look().current.name == "2.1"


def test_a_run_that_counts_tokens_has_a_share_done_too(tmp_path):
    on_disk = RunOnDisk(tmp_path, num_steps=None)
    on_disk.report(node_report("n0", 1, ranks=[0], steps=[1]))
    assert RunWatcher(on_disk.state_root, RUN).look().done_ratio == 1 / 32  # 1000 tokens in steps of 32


def test_the_last_node_is_the_one_with_the_highest_ranks():
    assert view(node_report("b", 1, ranks=[0, 1]), node_report("a", 1, ranks=[2, 3])).current.last_node == "a"
    assert view().current.last_node is None
