"""A run that leaves its cluster, with real processes, channel, checkpoints and journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.seal import check, read_seal
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Succeeded, Watch
from airflow_llmsched.control.ledger import build_ledger
from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.fleet_run import LEASE_S, FleetRun
from tests.support.waiting import wait_until

LIMIT_S = 60.0


@pytest.fixture
def open_run(tmp_path: Path) -> Iterator[Callable[..., FleetRun]]:
    made: list[FleetRun] = []

    def make(**terms: object) -> FleetRun:
        made.append(FleetRun(tmp_path, **terms))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def trained_to(run: FleetRun, step: int, *options: str) -> str:
    """Start the run, and return its channel once it has reported ``step``. Its lease is kept meanwhile."""
    outcome = run.driver(*options).start()
    assert isinstance(outcome, Watch)
    root = outcome.state.channel_root

    def has_come_so_far() -> bool:
        DirectoryChannel(root).renew(until_s=time.time() + LEASE_S)
        return step in run.steps(root)

    wait_until(has_come_so_far, LIMIT_S)
    return root


def preempt(run: FleetRun, name: str) -> None:
    """Have a cluster take all its nodes away from the run."""
    for node in ("n0", "n1"):
        run.fleet.preempt(NodeId(f"{name}/{node}"), grace_s=0.2, return_after_s=600.0)


def chosen(run: FleetRun) -> list[ev.CheckpointChosen]:
    return [event for event in run.journal.read() if isinstance(event, ev.CheckpointChosen)]


def test_preempted_run_goes_on_elsewhere_from_a_verified_copy_and_loses_only_later_steps(
    open_run: Callable[..., FleetRun],
) -> None:
    run = open_run()
    began_s = time.time()
    first_channel = trained_to(run, 12, "--step-s", "0.1")
    preempt(run, "a")
    outcome = run.finish(run.driver("--step-s", "0.02"))
    assert isinstance(outcome, Succeeded), outcome
    assert run.places() == ["a", "b"]
    _, second = run.driver().attempts()
    assert second.resumed_from is not None
    saved = second.resumed_from.step
    assert saved >= 10, "step 10 was complete before the preemption"
    assert run.steps(second.channel_root)[0] == saved + 1
    assert max(run.steps(first_channel)) - saved < 5 + 1, "no more than one interval was lost"
    copy, origin = Path(second.resumed_from.path), Path(run.context.places["a"].root)
    assert copy.is_relative_to(run.context.places["b"].root)
    seal, original = read_seal(copy), read_seal(origin / copy.relative_to(run.context.places["b"].root))
    assert seal is not None
    assert original is not None
    assert seal.digest == original.digest
    assert check(copy, seal, depth="content") is None
    assert "brought from a to b: " in chosen(run)[-1].note
    assert outcome.checkpoint is not None
    assert Path(outcome.checkpoint.path).is_relative_to(run.context.places["b"].root)
    assert time_of_the_copy(run, began_s=began_s) is Bucket.RECOVER


def time_of_the_copy(run: FleetRun, *, began_s: float) -> Bucket:
    """Return what the ledger has the time between plan and checkpoint down as."""
    driver = run.driver()
    reports = {each.key.attempt: read_all(DirectoryChannel(each.channel_root)) for each in driver.attempts()}
    ledger = build_ledger(
        run_start_s=began_s, run_end_s=time.time(), spans=driver.spans(), attempts=driver.attempts(), reports=reports
    )
    planned = [event for event in run.journal.read() if isinstance(event, ev.PlanChosen)][-1]
    brought = chosen(run)[-1]
    assert brought.at_s > planned.at_s
    middle_s = (planned.at_s + brought.at_s) / 2
    (span,) = [each for each in ledger.spans if each.start_s <= middle_s < each.end_s]
    return span.bucket


@pytest.mark.long
def test_clusters_that_share_a_storage_need_no_copy(open_run: Callable[..., FleetRun]) -> None:
    run = open_run(is_shared=True)
    trained_to(run, 7, "--step-s", "0.1")
    preempt(run, "a")
    assert isinstance(run.finish(run.driver("--step-s", "0.02")), Succeeded)
    assert run.places() == ["a", "b"]
    assert "brought" not in chosen(run)[-1].note
    first, second = run.driver().attempts()
    assert second.resumed_from is not None
    assert second.resumed_from.saved_by is not None
    assert second.resumed_from.saved_by.attempt == first.key.attempt
    assert run.steps(second.channel_root)[0] == second.resumed_from.step + 1


@pytest.mark.long
def test_run_whose_cluster_is_gone_waits_for_its_agents_lease_and_goes_on_elsewhere(
    open_run: Callable[..., FleetRun],
) -> None:
    """Power off: every process of the cluster is dead at once, and nobody answers for it."""
    run = open_run()
    trained_to(run, 12, "--step-s", "0.1")
    run.fleet.gates["a"].is_silent = True
    (handle,) = run.fleet.clusters["a"].engine.find(run.run)
    proc.end_all(lambda: run.fleet.clusters["a"].processes(handle), grace_s=0.0)
    outcome = run.finish(run.driver("--step-s", "0.02"))
    assert isinstance(outcome, Succeeded), outcome
    assert run.places() == ["a", "b"]
    events = run.journal.read()
    (fence,) = [event for event in events if isinstance(event, ev.FenceAwaited)]
    assert set(fence.nodes) == {"a/n0", "a/n1"}
    launches = [event for event in events if isinstance(event, ev.Launched)]
    assert launches[-1].at_s >= fence.until_s
    _, second = run.driver().attempts()
    assert second.resumed_from is not None
    assert second.resumed_from.step == 10


@pytest.mark.long
def test_run_goes_on_where_it_is_while_its_cluster_does_not_answer_but_its_agents_do(
    open_run: Callable[..., FleetRun],
) -> None:
    run = open_run(silent_after_s=2.0)
    root = trained_to(run, 3, "--step-s", "0.3")
    run.fleet.gates["a"].is_silent = True
    back = threading.Timer(3.5, lambda: setattr(run.fleet.gates["a"], "is_silent", False))
    back.start()
    outcome = run.finish(run.driver("--step-s", "0.3"))
    back.join()
    assert isinstance(outcome, Succeeded), outcome
    assert run.places() == ["a"]
    assert run.steps(root)[-1] == 20
