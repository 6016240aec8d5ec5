from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.planner.queue.consolidating import propose_moves
from airflow_llmsched.planner.queue.desk import Desk
from tests.support.queues import decided, gang, racks, reasons, runs_on, started, state_of, waits

ASKED = waits(gang("w", 8, required_level="rack"))


def small(key: str, node: str, *, save: float | None = 30.0, restart: float = 10.0, size: int = 2):
    return runs_on(gang(key, size), {node: size}, next_save_s=save, restart_s=restart, ends=1000.0)


def test_a_gang_that_would_fit_if_another_moved_gets_a_proposal_at_the_next_save():
    decision = decided(racks(2), ASKED, small("a", "r0n0"), small("b", "r1n0"))
    (move,) = decision.moves
    assert (move.gang, move.beneficiary, move.at_s) == ("a", "w", 30.0)
    assert dict(move.num_slots) == {"r1n0": 2}, "to what is left over there"
    assert (move.cost_accelerator_s, move.gain_accelerator_s) == (20.0, 8 * 970.0)
    assert reasons(decision) == {"w": "fragmented"}


def test_once_the_moves_are_made_the_gang_starts():
    held = [small("a", "r0n0"), small("b", "r1n0")]
    (move,) = decided(racks(2), ASKED, *held).moves
    moved = replace(held[0], held=dict.fromkeys(move.num_slots, (2, 3)))
    assert set(started(decided(racks(2), ASKED, moved, held[1]))["w"]) == {"r0n0", "r0n1"}


def test_whoever_is_cheaper_to_move_moves():
    decision = decided(racks(2), ASKED, small("a", "r0n0", restart=50.0), small("b", "r1n0", restart=40.0))
    assert [move.gang for move in decision.moves] == ["b"]


def test_all_movers_of_a_proposal_find_room_elsewhere():
    tight = [small("a", "r0n0", size=4), small("b", "r0n1", size=1)]
    tight += [small("c", "r1n0", size=4), small("d", "r1n1", size=1)]
    assert decided(racks(2), ASKED, *tight).moves == ()
    moves = decided(racks(3), ASKED, *tight, runs_on(gang("e", 2), {"r2n0": 2})).moves
    assert {move.gang: dict(move.num_slots) for move in moves} == {"a": {"r2n1": 4}, "b": {"r2n0": 1}}
    moves = decided(racks(3), ASKED, *tight, small("e", "r2n0")).moves
    assert [(move.gang, sum(move.num_slots.values())) for move in moves] == [("e", 2)]


def test_a_gang_without_a_boundary_stays_and_so_does_one_that_leaves():
    for other in (small("b", "r1n0", save=None), runs_on(gang("b", 2), {"r1n0": 2}, next_save_s=1.0, yields_to="x")):
        decision = decided(racks(2), ASKED, small("a", "r0n0", save=None), other)
        assert decision.moves == ()


def test_a_gang_moves_only_where_its_own_groups_can_stay_together():
    wish = PlacementWish(group=RankGroup.DP, level="node", required=True)
    free = [runs_on(gang("x", 3), {"r1n0": 3}), runs_on(gang("y", 3), {"r1n1": 3})]
    asked, whole, other = ASKED, gang("a", 2, group_levels=(wish,)), small("a", "r0n0")
    for mover, is_moved in ((other.gang, True), (whole, False)):
        decision = decided(racks(2), asked, *free, replace(other, gang=mover))
        assert bool(decision.moves) == is_moved, "one slot of each of two nodes is left elsewhere"


def test_a_gang_of_levels_that_are_no_more_stays():
    other = small("b", "r1n0", restart=50.0)
    lost = replace(small("a", "r0n0"), gang=gang("a", 2, required_level="pod"))
    assert [move.gang for move in decided(racks(2), ASKED, lost, other).moves] == ["b"]


def test_moves_that_cost_more_than_they_gain_are_not_proposed():
    dear = [small("a", "r0n0", restart=1e6), small("b", "r1n0", restart=1e6)]
    assert decided(racks(2), ASKED, *dear).moves == ()
    assert decided(racks(2), ASKED, small("a", "r0n0"), policy={"may_consolidate": False}).moves == ()


def test_a_start_that_nobody_knows_is_thought_to_be_far_away():
    desk = Desk.of(state_of(racks(2), ASKED, small("a", "r0n0"), small("b", "r1n0"), policy={"unknown_run_s": 500.0}))
    (move,) = propose_moves(desk, ASKED, start_s=None)
    assert move.gain_accelerator_s == 8 * (500.0 - 30.0)
