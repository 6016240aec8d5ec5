"""The plan of a launch, on what is free now."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.planning import MAX_CAPACITY_POLL_S, choose_plan, retry_at_s
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.topology import TopologyTree
from tests.support.sim_house import SimHouse, greedy_planner, plan_of, tree_of

N0, N1 = NodeId("n0"), NodeId("n1")
PLAN = plan_of(("n1", 2))
CONTEXT = SimHouse().context


def command(**changes: object) -> cmd.ChoosePlan:
    blank = cmd.ChoosePlan(keep=None, excluded=(), first=False, waiting_since_s=None)
    return replace(blank, **changes)  # type: ignore[arg-type]


def with_node(tree: TopologyTree, node_id: str, **changes: object) -> TopologyTree:
    nodes = tuple(replace(each, **changes) if each.id == node_id else each for each in tree.nodes)  # type: ignore[arg-type]
    return replace(tree, nodes=nodes)


def choose(asked: cmd.ChoosePlan, tree: TopologyTree, *, first_plan: Plan | None = None, now_s: float = 0.0) -> object:
    context = replace(CONTEXT, first_plan=first_plan)
    return choose_plan(asked, context, tree, greedy_planner, now_s=now_s)


def test_kept_plan_is_used_while_its_nodes_are_free() -> None:
    chosen = choose(command(keep=PLAN), tree_of())
    assert chosen == ev.PlanChosen(at_s=0.0, plan=PLAN)


def test_given_plan_serves_the_first_launch_only() -> None:
    first = choose(command(first=True), tree_of(), first_plan=PLAN)
    later = choose(command(), tree_of(), first_plan=PLAN)
    assert isinstance(first, ev.PlanChosen)
    assert isinstance(later, ev.PlanChosen)
    assert first.plan == PLAN
    assert later.plan != PLAN


def test_plan_whose_node_is_busy_gone_down_or_blamed_is_replaced_with_the_reason() -> None:
    cases = [
        (with_node(tree_of(), "n1", num_free_slots=1), (), "has 1 of 2 slots free"),
        (tree_of(1), (), "node n1 is gone"),
        (with_node(tree_of(), "n1", unusable_reason="preempted"), (), "cannot be used: preempted"),
        (tree_of(), (N1,), "node n1 failed before"),
    ]
    for tree, excluded, words in cases:
        chosen = choose(command(keep=PLAN, excluded=excluded), tree)
        assert isinstance(chosen, ev.PlanChosen)
        assert chosen.plan != PLAN
        assert words in chosen.note


def test_blamed_node_is_used_again_rather_than_none_at_all() -> None:
    chosen = choose(command(excluded=(N0,)), tree_of(1))
    assert isinstance(chosen, ev.PlanChosen)
    assert "no plan without n0" in chosen.note


def test_refusal_counts_reasons_and_says_when_to_look_again() -> None:
    busy = with_node(tree_of(1), "n0", num_free_slots=0)
    refused = choose(command(), busy, now_s=100.0)
    assert isinstance(refused, ev.PlanRefused)
    assert "fewer than 2 ranks: 1" in refused.reason
    assert refused.retry_at_s == 100.0 + CONTEXT.capacity_poll_s


def test_refusal_that_waiting_cannot_help_is_final() -> None:
    refused = choose(command(), tree_of(1, 1))
    assert isinstance(refused, ev.PlanRefused)
    assert refused.retry_at_s is None
    assert "waiting cannot help" in refused.reason


def test_waits_grow_and_end() -> None:
    since_s, now_s, pauses_s = 0.0, 0.0, []
    while (again_at_s := retry_at_s(waiting_since_s=since_s, now_s=now_s, wait_s=1e4, poll_s=5.0)) is not None:
        pauses_s.append(again_at_s - now_s)
        now_s = again_at_s
    assert pauses_s[0] == 5.0
    assert max(pauses_s) == MAX_CAPACITY_POLL_S
    assert now_s == 10_000.0
    assert len(pauses_s) < 60


def test_plan_whose_slots_others_took_is_made_anew() -> None:
    taken = with_node(tree_of(1, 4), "n0", num_free_slots=2, free_slots=(2, 3))
    chosen = choose(command(keep=plan_of(("n0", 2))), taken)
    assert isinstance(chosen, ev.PlanChosen)
    assert "slots [0, 1] of node n0 are taken" in chosen.note
