from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.control import arbiter_state as states
from airflow_llmsched.control.arbiter_state import (
    FORM,
    AnyChange,
    Claim,
    Claimed,
    Decided,
    Freed,
    GroundState,
    Led,
    QueueLease,
)
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad
from airflow_llmsched.domain.queue import QueuedGang, Reservation, TeamUsage
from airflow_llmsched.domain.queue_decision import Preempt, Start, WaitReason, Waits
from airflow_llmsched.errors import DataError

ONE, TWO = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), RunKey("ls-bbbbbbbbbbbbbbbbbbbb")
N0, N1 = NodeId("n0"), NodeId("n1")


def claim_of(run: RunKey, *, held: states.Slots | None = None, num_records: int = 1, since_s: float = 10.0) -> Claim:
    gang = QueuedGang(key=run, team="red", priority_class="normal", layout=ParallelLayout(dp=2))
    return Claim(gang=gang, num_records=num_records, since_s=since_s, held=held or {})


def after(*changes: AnyChange) -> GroundState:
    state = GroundState()
    for change in changes:
        state = states.apply(state, change)
    return state


def decided(**what: object) -> Decided:
    return Decided(holder="me", at_s=20.0, **what)  # type: ignore[arg-type]


def test_a_claim_holds_slots_or_waits_and_is_gone_once_it_is_freed() -> None:
    state = after(Claimed(claim=claim_of(ONE, held={N0: (0, 1)})), Claimed(claim=claim_of(TWO)))
    assert state.held == {N0: {0, 1}}
    assert [each.gang.key for each in state.waiting] == [TWO]
    state = states.apply(state, Freed(run=ONE, num_records=1, remember_until_s=99.0))
    assert state.held == {}
    assert state.undecided == {TWO}


def test_what_was_held_is_remembered_for_its_team_until_it_is_counted_by_the_next_decision() -> None:
    held = replace(claim_of(ONE, held={N0: (0, 1)}), started_s=30.0)
    fewer = replace(held, held={N0: (0,)})
    state = after(decided(), Claimed(claim=held, at_s=30.0))
    assert state.past == ()
    state = states.apply(state, Claimed(claim=replace(held, num_records=2), at_s=35.0))
    assert state.past == ()  # it holds the same as before
    state = states.apply(state, Claimed(claim=replace(fewer, num_records=3), at_s=40.0))
    state = states.apply(state, Freed(run=ONE, num_records=3, remember_until_s=99.0, at_s=70.0))
    told = [(each.team, each.amounts.num_accelerators, each.from_s, each.until_s) for each in state.past]
    assert told == [("red", 2.0, 30.0, 40.0), ("red", 1.0, 40.0, 70.0)]
    assert states.apply(state, decided()).past == ()


def test_nothing_is_charged_for_what_waits_what_is_rented_or_what_an_older_version_gave_back() -> None:
    own = replace(claim_of(ONE, held={N0: (0,)}), is_own=True, started_s=30.0)
    for claim, at_s in ((own, 50.0), (claim_of(ONE), 50.0), (replace(own, is_own=False), 0.0)):
        state = after(Claimed(claim=claim, at_s=30.0), Freed(run=ONE, num_records=1, remember_until_s=99.0, at_s=at_s))
        assert state.past == ()


def test_whoever_came_first_waits_first() -> None:
    state = after(Claimed(claim=claim_of(ONE, since_s=12.0)), Claimed(claim=claim_of(TWO, since_s=11.0)))
    assert [each.gang.key for each in state.waiting] == [TWO, ONE]


def test_a_decision_gives_slots_orders_to_leave_and_says_why_the_others_wait() -> None:
    state = after(
        Claimed(claim=claim_of(ONE, held={N0: (0,)})),
        Claimed(claim=claim_of(TWO)),
        Led(lease=QueueLease(holder="me", until_s=50.0)),
    )
    kept = Reservation(gang=TWO, start_s=30.0, until_s=None, num_slots={N0: 1}, is_promised=True)
    waits = Waits(gang=TWO, reason=WaitReason.YIELDING, detail="soon")
    order = Preempt(gang=ONE, beneficiary=TWO, leaves_by_s=30.0, cost_accelerator_s=1.0)
    usage = TeamUsage(team="red", accelerator_s=10.0, at_s=20.0)
    state = states.apply(state, decided(preemptions=(order,), reservations=(kept,), waits=(waits,), usage=(usage,)))
    assert (state.lease, state.undecided, state.usage) == (None, frozenset(), (usage,))
    assert state.claims[ONE].yields_to == TWO
    assert (state.claims[TWO].reserved, state.claims[TWO].wait) == (kept, waits)
    state = states.apply(state, Freed(run=ONE, num_records=1, remember_until_s=99.0))
    state = states.apply(state, decided(starts=(Start(gang=TWO, held={N0: (0,)}, ends_by_s=40.0),)))
    started = state.claims[TWO]
    assert (started.held, started.started_s, started.ends_by_s) == ({N0: (0,)}, 20.0, 40.0)
    assert (started.reserved, started.wait) == (None, None)


@pytest.mark.parametrize(
    "end",
    [
        Freed(run=TWO, num_records=1, remember_until_s=99.0),
        decided(starts=(Start(gang=TWO, held={N1: (0,)}),)),
        Claimed(claim=claim_of(TWO, held={N1: (0,)})),
    ],
)
def test_nobody_leaves_for_a_run_that_is_gone_or_has_started_elsewhere(end: AnyChange) -> None:
    order = Preempt(gang=ONE, beneficiary=TWO, leaves_by_s=30.0, cost_accelerator_s=1.0)
    state = after(
        Claimed(claim=claim_of(ONE, held={N0: (0,)})), Claimed(claim=claim_of(TWO)), decided(preemptions=(order,)), end
    )
    assert state.claims[ONE].yields_to is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ([Claimed(claim=claim_of(ONE, held={N0: (0,)})), Claimed(claim=claim_of(TWO, held={N0: (0, 1)}))], "n0:0"),
        (
            [
                Claimed(claim=claim_of(ONE, held={N0: (0,)})),
                Claimed(claim=claim_of(TWO)),
                decided(starts=(Start(gang=TWO, held={N0: (0,)}),)),
            ],
            "held by two runs",
        ),
        (
            [Claimed(claim=claim_of(ONE, held={N0: (0, 1)})), Claimed(claim=claim_of(TWO, held={N0: (2000,)}))],
            "n0:1, n0:2000 are held by two",
        ),
        ([decided(starts=(Start(gang=TWO, held={N0: (0,)}),))], "claims nothing"),
        ([Claimed(claim=claim_of(ONE, held={N0: (0,)})), decided(absent=(ONE,))], "while it may be there"),
        (
            [Freed(run=ONE, num_records=5, remember_until_s=99.0), Claimed(claim=claim_of(ONE, num_records=4))],
            "given back",
        ),
        ([Claimed(claim=claim_of(ONE, num_records=5)), Claimed(claim=claim_of(ONE, num_records=4))], "given back"),
    ],
)
def test_a_change_that_cannot_have_been_made_is_damage(changes: list[AnyChange], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        after(*changes)


def test_a_claim_that_changes_nothing_that_matters_needs_no_decision() -> None:
    state = after(Claimed(claim=claim_of(ONE, held={N0: (0,)})), decided())
    assert not states.apply(state, Claimed(claim=claim_of(ONE, held={N0: (0,)}, num_records=7))).undecided
    assert states.apply(state, Claimed(claim=claim_of(ONE, num_records=7))).undecided


def test_what_was_given_back_is_forgotten_when_it_may_be() -> None:
    state = after(
        Freed(run=ONE, num_records=5, remember_until_s=10.0), Freed(run=TWO, num_records=5, remember_until_s=20.0)
    )
    assert set(states.forget(state, 10.0).given_back) == {TWO}


@given(
    num_records=st.integers(0, 5),
    held=st.dictionaries(st.sampled_from([N0, N1]), st.sampled_from([(0,), (0, 1), (3,)]), max_size=2),
)
def test_state_and_changes_come_back_as_they_were_written(num_records: int, held: states.Slots) -> None:
    order = Preempt(gang=ONE, beneficiary=TWO, leaves_by_s=30.0, cost_accelerator_s=1.0)
    waits = Waits(gang=TWO, reason=WaitReason.YIELDING, detail="soon", start_s=30.0)
    changes: list[AnyChange] = [
        Claimed(claim=claim_of(ONE, held=held, num_records=num_records)),
        Claimed(claim=replace(claim_of(TWO), dag_id="ä")),
        Led(lease=QueueLease(holder="me", until_s=50.0)),
        decided(preemptions=(order,), waits=(waits,)),
        Freed(run=TWO, num_records=num_records, remember_until_s=99.0),
    ]
    for change in changes:
        assert FORM.decode_change(FORM.encode_change(change, number=7), number=7, where="here") == change
    state = after(*changes)
    assert FORM.decode_state(FORM.encode_state(state, number=64), number=64, where="here") == state


def test_who_does_not_come_for_long_is_absent_whether_he_waits_or_was_given_something() -> None:
    waiting = replace(claim_of(ONE), seen_at_s=1_000.0)
    given = replace(claim_of(TWO, held={N0: (0,)}), given_at_s=1_500.0)
    claims = {ONE: waiting, TWO: given}
    state = GroundState(claims=claims, decided_at_s=2_500.0, awake_since_s=900.0)
    assert [state.absent(at_s) for at_s in (2_200.0, 2_201.0, 2_701.0)] == [(), (ONE,), (ONE, TWO)]
    assert state.absent(9_000.0) == ()  # nobody was there for long: all are given the time to come back
    older = {ONE: replace(waiting, seen_at_s=0.0), TWO: replace(given, given_at_s=None)}
    assert replace(state, claims=older).absent(2_701.0) == ()


def test_who_is_absent_keeps_his_place_and_nothing_else() -> None:
    order = Preempt(gang=ONE, beneficiary=TWO, leaves_by_s=30.0, cost_accelerator_s=1.0)
    promised = Reservation(gang=TWO, start_s=30.0, until_s=None, num_slots={N0: 1}, is_promised=True, is_claim=True)
    state = after(
        Claimed(claim=claim_of(ONE, held={N0: (0,)})),
        Claimed(claim=claim_of(TWO)),
        decided(preemptions=(order,), reservations=(promised,)),
        decided(absent=(TWO,)),
    )
    assert state.claims[ONE].yields_to is None
    assert state.claims[TWO] == claim_of(TWO)
    state = after(Claimed(claim=claim_of(TWO)), decided(starts=(Start(gang=TWO, held={N0: (0,)}, ends_by_s=90.0),)))
    assert states.apply(state, decided(absent=(TWO,))).claims[TWO] == claim_of(TWO)


LOAD = NetworkLoad(
    shape="p5.48xlarge",
    step_s=1.25,
    links=(LinkLoad(domains=(("b0", "r0"), ("b0", "r1")), bytes_per_step=4.02e10, alone_bytes_per_s=2.8e10),),
)


def read_with(load: object) -> Claim:
    """Return a claim as it is read from a record in which its load is something else."""
    claim = replace(claim_of(ONE, held={N0: (0, 1)}), load=LOAD)
    plain = json.loads(FORM.encode_change(Claimed(claim=claim), number=7))
    if load is None:
        del plain["change"]["claim"]["load"]
    else:
        plain["change"]["claim"]["load"] = load
    change = FORM.decode_change(json.dumps(plain).encode(), number=7, where="here")
    assert isinstance(change, Claimed)
    assert replace(change.claim, load=LOAD) == claim
    return change.claim


def test_a_claim_comes_back_with_its_load_and_without_one_from_an_older_version() -> None:
    claim = replace(claim_of(ONE, held={N0: (0, 1)}), load=LOAD)
    state = after(Claimed(claim=claim))
    assert FORM.decode_state(FORM.encode_state(state, number=64), number=64, where="here") == state
    assert FORM.decode_change(FORM.encode_change(Claimed(claim=claim), number=7), number=7, where="here") == Claimed(
        claim=claim
    )
    assert read_with(None).load is None


@pytest.mark.parametrize("load", [7, "much", [], {"shape": "a"}, {"shape": "a", "step_s": -1.0}, {"links": [[]]}])
def test_a_load_that_is_damaged_is_as_good_as_none_and_the_rest_of_the_claim_is_read(load: object) -> None:
    assert read_with(load).load is None


def test_a_load_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read_with({"shape": "a", "step_s": 2.0, "colour": "red"}).load == NetworkLoad(shape="a", step_s=2.0)


def test_who_is_passed_over_puts_nothing_on_the_network() -> None:
    given = replace(claim_of(ONE, held={N0: (0,)}), load=LOAD, given_at_s=10.0)
    assert states.passed_over(after(Claimed(claim=given)), [ONE]).claims[ONE].load is None
