from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.collect import RankView
from airflow_llmsched.agent.watch import (
    ABORTED,
    DONE,
    STOPPED,
    TERMINATED,
    LauncherEnd,
    Peer,
    Verdict,
    View,
    all_armed,
    all_done,
    all_started,
    decide,
    describe_end,
    signal_name,
)
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.engines.agent_states import PHASE

UP = Peer(started=True)


def rank(number: int, **end: Any) -> RankView:
    view = RankView(rank=number, pid=10, wrapper="1:2:b", started_at_s=100.0)
    if end:
        view.end = wire.end_record(
            rank=number,
            exit_code=end.get("code"),
            signal=end.get("signal"),
            at_s=end.get("at_s", 110.0),
            start_error=end.get("start_error"),
        )
    return view


def view(*ranks: RankView, **changes: Any) -> View:
    base = View(
        now_s=111.0,
        node="n0",
        num_ranks=2,
        ranks={each.rank: each for each in ranks},
        go_at_s=100.0,
        start_limit_s=30.0,
        exit_grace_s=5.0,
        peers={"n1": UP},
    )
    return base._replace(**changes)


def test_running_gang_goes_on() -> None:
    assert decide(view(rank(0), rank(1))) is None


def test_gang_still_starting_goes_on_within_the_limit() -> None:
    assert decide(view(rank(0), peers={"n1": Peer()}, now_s=129.9)) is None


def test_stop_comes_before_every_other_reason() -> None:
    assert decide(view(rank(0, code=3), stop_asked=True, lease_expired=True, terminated=True)) == Verdict(STOPPED)


def test_what_a_peer_decided_is_taken_over() -> None:
    abort = {"fault": "rank_failed", "reason": "rank 3 on node n1 exited with code 7", "rank": 3}
    assert decide(view(rank(0, code=1), abort=abort)) == Verdict(ABORTED, "rank_failed", abort["reason"], 3)


def test_earliest_failure_on_the_node_is_the_one_named() -> None:
    verdict = decide(view(rank(0, code=1, at_s=110.5), rank(1, code=3, at_s=110.2)))
    assert verdict == Verdict(ABORTED, "rank_failed", "rank 1 on node n0 exited with code 3", 1)


def test_killed_rank_is_named_with_its_signal() -> None:
    verdict = decide(view(rank(0), rank(1, signal=9)))
    assert verdict is not None
    assert verdict.reason == "rank 1 on node n0 was ended by SIGKILL (signal 9)"


def test_killed_rank_on_a_node_whose_notice_has_run_out_was_preempted() -> None:
    seen = view(rank(0), rank(1, signal=15), notices={"n0": 110.0})
    assert decide(seen) == Verdict(TERMINATED, "preempted", "node n0 was preempted")


def test_rank_that_fails_before_the_notice_has_run_out_has_failed() -> None:
    verdict = decide(view(rank(0), rank(1, code=3), notices={"n0": 200.0}))
    assert verdict is not None
    assert verdict.fault == "rank_failed"


def test_rank_that_could_not_start_fails_the_start() -> None:
    verdict = decide(view(rank(1, code=127, start_error="cannot start 'x': No such file or directory")))
    assert verdict is not None
    assert (verdict.fault, verdict.rank) == ("start_failed", 1)
    assert "No such file" in verdict.reason


def test_rank_that_exited_0_early_is_named_after_the_grace() -> None:
    seen = view(rank(0), rank(1, code=0, at_s=107.0))
    assert decide(seen._replace(now_s=111.9)) is None
    verdict = decide(seen._replace(now_s=112.0))
    assert verdict is not None
    assert (verdict.fault, verdict.rank) == ("rank_exited_early", 1)
    assert "rank 1" in verdict.reason


def test_node_that_is_done_waits_for_the_others_then_names_its_first_rank_that_left() -> None:
    seen = view(rank(0, code=0, at_s=107.5), rank(1, code=0, at_s=107.0))
    assert decide(seen) is None
    verdict = decide(seen._replace(now_s=112.0))
    assert verdict is not None
    assert verdict.rank == 1


def test_gang_is_done_when_every_node_is() -> None:
    seen = view(rank(0, code=0), rank(1, code=0), peers={"n1": Peer(started=True, done=True)}, now_s=1e6)
    assert decide(seen) == Verdict(DONE)
    assert all_done(seen)


HERE, ARMED = Peer(here=True), Peer(here=True, armed=True)


@pytest.mark.parametrize(
    ("ranks", "peers", "late"),
    [
        ((rank(0),), {"n1": HERE, "n2": UP}, "n0, n1"),
        ((rank(0),), {"n1": Peer(), "n2": ARMED}, "n1"),  # those that are there had to wait for it
        ((rank(0), rank(1)), {"n1": HERE, "n2": ARMED}, "n1"),
        ((rank(0), rank(1)), {"n1": ARMED, "n2": UP}, "n1"),
    ],
)
def test_start_limit_names_the_nodes_that_the_others_wait_for(
    ranks: tuple[RankView, ...], peers: dict[str, Peer], late: str
) -> None:
    verdict = decide(view(*ranks, peers=peers, now_s=130.0))
    assert verdict is not None
    assert verdict.fault == "start_timeout"
    assert verdict.reason.endswith(f": node {late}")


def test_rank_stands_ready_before_it_starts() -> None:
    waiting = RankView(rank=1, wrapper="1:2:b")
    assert all_armed(view(rank(0), waiting))
    assert not all_started(view(rank(0), waiting))
    assert not all_armed(view(rank(0), RankView(rank=1)))


def test_peer_that_vanished_is_reported_with_how_that_is_known() -> None:
    gone = Peer(started=True, gone=True, how="nothing was heard of it for 10 s")
    verdict = decide(view(rank(0), rank(1), peers={"n1": gone}))
    assert verdict == Verdict("aborted", "node_lost", "node n1 vanished: nothing was heard of it for 10 s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("code: -98, name: EADDRINUSE, message: address already in use", "port in use: "),
        ("Address already in use", "port in use: "),
        ("ImportError: no torch", "the launcher of node n0 ended with code 1"),
    ],
)
def test_launcher_that_ends_before_its_ranks_start_fails_the_start(text: str, expected: str) -> None:
    verdict = decide(view(launcher_ends=[LauncherEnd(1, f"{text}\n" + "trace\n" * 30)]))
    assert verdict is not None
    assert verdict.fault == "start_failed"
    assert verdict.reason.startswith(expected)
    assert verdict.reason.count("trace") == 20


def test_launcher_that_is_killed_under_its_ranks_means_a_lost_node() -> None:
    verdict = decide(view(rank(0), rank(1), launcher_ends=[LauncherEnd(-9, "")]))
    assert verdict is not None
    assert verdict.fault == "node_lost"
    assert "SIGKILL" in verdict.reason


def test_launcher_that_ends_well_while_another_still_runs_is_no_reason() -> None:
    assert decide(view(rank(0, code=0), rank(1), launcher_ends=[LauncherEnd(0, "")])) is None


def test_rank_or_launcher_that_the_platform_told_to_end_before_its_own_deadline_was_preempted() -> None:
    rank_told = view(rank(0), rank(1, signal=15), notices={"n0": 999.0})
    assert decide(rank_told) == Verdict(TERMINATED, "preempted", "node n0 was preempted")
    launcher_told = view(rank(0), rank(1), launcher_ends=[LauncherEnd(1, "")], notices={"n0": 999.0})
    assert decide(launcher_told) == Verdict(TERMINATED, "preempted", "node n0 was preempted")
    crashed = decide(view(rank(0), rank(1, signal=11), notices={"n0": 999.0}))
    assert crashed is not None
    assert crashed.fault == "rank_failed"


def test_vanished_peer_is_lost_or_was_preempted() -> None:
    lost = decide(view(rank(0), rank(1), peers={"n1": Peer(started=True, gone=True)}))
    taken = decide(view(rank(0), rank(1), peers={"n1": Peer(started=True, gone=True)}, notices={"n1": 111.0}))
    told = decide(view(rank(0), rank(1), peers={"n1": Peer(started=True, terminated=True)}))
    assert lost is not None
    assert (lost.fault, "n1" in lost.reason) == ("node_lost", True)
    assert taken == Verdict(ABORTED, "preempted", "node n1 was preempted")
    assert told is not None
    assert told.fault == "node_lost"


def test_supervisor_told_to_end_was_preempted_if_that_was_announced_else_lost() -> None:
    plain = decide(view(rank(0), rank(1), terminated=True))
    announced = decide(view(rank(0), rank(1), terminated=True, notices={"n0": 111.0}))
    assert plain is not None
    assert (plain.outcome, plain.fault) == (TERMINATED, "node_lost")
    assert announced == Verdict(TERMINATED, "preempted", "node n0 was preempted")


def test_lease_that_ran_out_fences_the_node() -> None:
    verdict = decide(view(rank(0), rank(1), lease_expired=True, lease_until_s=110.25))
    assert verdict is not None
    assert verdict.fault == "gang_lost"
    assert "110.250" in verdict.reason


def test_full_disk_explains_a_rank_that_failed_for_it() -> None:
    trouble = Verdict(ABORTED, "disk_full", "disk full: cannot write /x")
    assert decide(view(rank(0, code=1), rank(1), trouble=trouble)) == trouble


@given(
    codes=st.lists(st.sampled_from([None, 0, 1]), min_size=2, max_size=2),
    now_s=st.floats(100.0, 300.0),
    peer=st.builds(Peer, started=st.booleans(), done=st.booleans(), gone=st.booleans(), terminated=st.booleans()),
    flags=st.fixed_dictionaries({"lease_expired": st.booleans(), "terminated": st.booleans()}),
)
def test_only_a_gang_whose_every_rank_exited_0_is_done_and_every_fault_has_a_phase(
    codes: list[int | None], now_s: float, peer: Peer, flags: dict[str, bool]
) -> None:
    ranks = [rank(number) if code is None else rank(number, code=code) for number, code in enumerate(codes)]
    verdict = decide(view(*ranks, now_s=now_s, peers={"n1": peer}, **flags))
    if verdict is not None and verdict.outcome == DONE:
        assert codes == [0, 0]
        assert peer.done
    if verdict is not None and verdict.fault is not None:
        assert FaultKind(verdict.fault) in PHASE
        assert verdict.reason


def test_unknown_signal_has_a_name_all_the_same() -> None:
    assert signal_name(63) == "signal 63"
    assert describe_end(wire.end_record(rank=4, exit_code=None, signal=63, at_s=1.0), node="n2") == (
        "rank 4 on node n2 was ended by signal 63"
    )


def with_helper(*ranks: RankView, **changes: Any) -> View:
    """A node of two trainers, and of a helper whose number is 4."""
    return view(*ranks, helpers=frozenset({4}), **changes)


def test_node_has_started_when_its_helpers_have_too() -> None:
    assert not all_started(with_helper(rank(0), rank(1)))
    assert all_started(with_helper(rank(0), rank(1), rank(4)))


def test_gang_is_done_when_its_trainers_are_whatever_its_helpers_do() -> None:
    trainers = rank(0, code=0), rank(1, code=0)
    for helper in (rank(4), rank(4, code=0), rank(4, code=3), rank(4, signal=9)):
        assert decide(with_helper(*trainers, helper, peers={"n1": Peer(started=True, done=True)})) == Verdict(DONE)


def test_helper_that_fails_fails_the_gang_once_word_of_the_trainers_end_could_have_come() -> None:
    failed = rank(4, code=3, at_s=110.0)
    assert decide(with_helper(rank(0), rank(1), failed, now_s=111.9)) is None
    verdict = decide(with_helper(rank(0), rank(1), failed, now_s=112.1))
    assert verdict is not None
    assert (verdict.outcome, verdict.fault, verdict.rank) == (ABORTED, "rank_failed", 4)


def test_helper_that_cannot_start_fails_the_gang_at_once() -> None:
    verdict = decide(with_helper(rank(0), rank(1), rank(4, code=127, start_error="cannot start 'x'")))
    assert verdict is not None
    assert verdict.fault == "start_failed"


def test_helper_that_fails_as_the_trainers_leave_is_forgiven_while_they_do() -> None:
    failed = rank(4, code=3, at_s=110.0)
    leaving = rank(0, code=0, at_s=110.5), rank(1)
    assert decide(with_helper(*leaving, failed, now_s=114.0)) is None
    verdict = decide(with_helper(*leaving, failed, now_s=116.0))
    assert verdict is not None
    assert verdict.fault == "rank_exited_early"
    others_left = {"n1": Peer(started=True, done=True, ending=True)}
    assert decide(with_helper(rank(0), rank(1), failed, now_s=114.0, peers=others_left)) is None


def test_helper_that_exits_0_is_no_trainer_that_left_early() -> None:
    assert decide(with_helper(rank(0), rank(1), rank(4, code=0, at_s=101.0), now_s=200.0)) is None


def test_node_of_helpers_alone_is_done_from_the_start_and_excuses_nobody() -> None:
    only_helper = view(rank(4), helpers=frozenset({4}), num_ranks=0)
    assert all_done(only_helper)
    assert decide(only_helper) is None
    failed = rank(4, code=3, at_s=110.0)
    alone = {"n1": Peer(started=True, done=True)}
    judged = with_helper(rank(0), rank(1), failed, now_s=113.0, peers=alone)
    verdict = decide(judged)
    assert verdict is not None
    assert verdict.fault == "rank_failed"


def test_helpers_end_is_told_by_its_role() -> None:
    end = wire.end_record(rank=4, exit_code=3, signal=None, at_s=1.0, who="data_loader 0")
    assert describe_end(end, node="n0") == "data_loader 0 on node n0 exited with code 3"
