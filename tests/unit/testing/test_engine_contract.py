"""The contract must be able to fail: an engine that lies is caught. That good ones pass is shown in tests/contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.testing.engine_contract import (
    HANGS,
    SUCCEEDS,
    EngineContract,
    EngineHarness,
    RankScript,
    attempt_key,
    gang_of,
)
from tests.support.local_engine import LocalHarness


@dataclass
class Lying:
    """A local engine that reports every gang as ``phase`` and runs nothing."""

    inner: object
    phase: GangPhase
    submitted: list[GangHandle] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def submit(self, request: object, *, key: AttemptKey) -> GangHandle:
        handle = GangHandle(engine="local", key=key, native_id=f"{key.name}-{len(self.submitted)}")
        self.submitted.append(handle)
        return handle

    def poll(self, handles: Sequence[GangHandle]) -> dict[GangHandle, GangStatus]:
        return {handle: GangStatus(phase=self.phase, observed_at_s=1.0) for handle in handles}

    def find(self, key: str) -> list[GangHandle]:
        return [handle for handle in self.submitted if handle.key.run == key]


class LyingHarness(LocalHarness):
    def __init__(self, root: Path, phase: GangPhase) -> None:
        super().__init__(root)
        self.engine = Lying(self.engine, phase)  # type: ignore[assignment]

    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        assert predicate(), f"not within {limit_s} s"

    def num_live_ranks(self, handle: GangHandle) -> int:
        return 0

    def reopened(self) -> object:  # type: ignore[override]
        return self.engine


contract = EngineContract()
CAUGHT_SUCCEEDING = [
    contract.test_failed_rank_ends_the_gang_and_is_named_with_its_code_and_last_lines,
    contract.test_rank_that_exits_0_early_fails_the_gang_within_the_exit_grace,
    contract.test_killed_rank_without_a_notice_is_a_failure_that_names_the_signal,
    contract.test_command_that_cannot_start_fails_the_gang_and_names_a_rank,
    contract.test_polling_a_gang_that_never_was_says_lost,
]
CAUGHT_RUNNING = [
    contract.test_running_gang_shows_its_nodes,
    contract.test_submitting_twice_starts_one_gang,
    contract.test_gang_succeeds_when_every_rank_exits_0,
    contract.test_vanished_node_means_lost_and_the_rest_is_ended,
    contract.test_topology_counts_what_live_gangs_use,
    contract.test_submits_of_one_attempt_at_once_start_one_gang,
]
CAUGHT_FORGETTING = [
    contract.test_late_submit_of_an_abandoned_attempt_starts_nothing,
    contract.test_abandoned_attempt_is_seen_as_a_gang_that_was_stopped,
    contract.test_abandoning_twice_is_abandoning_once,
]


@pytest.mark.parametrize("check", CAUGHT_SUCCEEDING, ids=lambda check: check.__name__)
def test_engine_that_calls_everything_a_success_is_caught(
    check: Callable[[EngineHarness], None], tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        check(LyingHarness(tmp_path, GangPhase.SUCCEEDED))


@pytest.mark.parametrize("check", CAUGHT_RUNNING, ids=lambda check: check.__name__)
def test_engine_that_calls_everything_running_is_caught(check: Callable[[EngineHarness], None], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(LyingHarness(tmp_path, GangPhase.RUNNING))


@pytest.mark.parametrize("check", CAUGHT_FORGETTING, ids=lambda check: check.__name__)
def test_engine_that_forgets_what_was_abandoned_is_caught(
    check: Callable[[EngineHarness], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = LocalHarness(tmp_path)
    monkeypatch.setattr(LocalEngine, "abandon", lambda _self, _key: True)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(harness)
    finally:
        harness.close()


def test_contract_without_a_harness_says_what_to_override() -> None:
    with pytest.raises(NotImplementedError, match="overrides the harness fixture"):
        EngineContract.harness.__wrapped__(contract)  # type: ignore[attr-defined]


def test_gang_fills_the_slots_in_order_and_numbers_local_ranks_per_node(tmp_path: Path) -> None:
    harness = LocalHarness(tmp_path)
    gang: GangSpec = gang_of(harness, [SUCCEEDS] * 3, skip=1)
    assert [(slot.rank, slot.node, slot.slot, slot.local_rank) for slot in gang.placement.slots] == [
        (0, "n0", 1, 0),
        (1, "n1", 0, 0),
        (2, "n1", 1, 1),
    ]
    only = replace(harness.engine.topology().nodes[1], id=NodeId("n1"))
    assert {slot.node for slot in gang_of(harness, [HANGS], on=only).placement.slots} == {"n1"}
    with pytest.raises(AssertionError, match="2 nodes of 2 slots"):
        gang_of(harness, [RankScript()] * 5)


def test_attempt_keys_are_never_the_same_twice() -> None:
    assert len({attempt_key() for _ in range(100)}) == 100
