from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.planner.contention.advice import capacities
from airflow_llmsched.planner.contention.beside import (
    MAX_NAMED,
    MAX_SLOWED,
    Beside,
    note_of,
    plan_beside,
    with_note,
    words_beside,
)
from airflow_llmsched.planner.contention.busy import with_busy_links
from airflow_llmsched.planner.contention.loads import GangLoad
from airflow_llmsched.planner.contention.slowdown import slowdowns
from airflow_llmsched.planner.perf.hardware import node_shapes
from tests.support.networked_house import plan_in_earnest, trained_on, two_blocks
from tests.unit.planner.contention.test_advice import THIN, load


def test_who_slows_the_new_gang_and_whom_it_slows_is_said_and_what_helps() -> None:
    told = words_beside(load("this run", 0, 4), [load("B", 1, 5)], THIN)
    assert told[0].startswith("B on the links of the block of n0 slows this run by ")
    assert told[1].startswith("this run on the links of the block of n0 slows B by ")
    assert told[2].startswith("beginning steps apart (B ")
    assert told[3].startswith("staging or saving as fast as a node's cards go would slow this run by ")
    assert len(told) == 4


def test_what_is_said_is_what_the_model_of_slowdowns_says() -> None:
    gangs = [load("this run", 0, 4), load("B", 1, 5)]
    (mine, _) = slowdowns(gangs, capacities(gangs, THIN))
    assert words_beside(gangs[0], gangs[1:], THIN)[0].endswith(f"slows this run by {mine.ratio - 1:.1%}")


def test_nothing_is_said_of_gangs_that_share_no_link_with_it() -> None:
    apart = [load("B", 4, 5), load("C", 4, 6), GangLoad(name="D", step_s=1.0, uses={})]
    assert words_beside(load("this run", 0, 1), apart, THIN) == ()
    assert words_beside(load("this run", 0, 4), [], THIN) == ()


def test_what_others_do_to_one_another_is_not_said() -> None:
    told = words_beside(load("this run", 0, 1), [load("B", 2, 6), load("C", 3, 7)], THIN)
    assert told == ()


def test_of_many_only_the_worst_are_named_and_the_rest_counts_all_the_same() -> None:
    others = [load(f"B{number}", 1, 5) for number in range(30)]
    told = words_beside(load("this run", 0, 4), others, THIN)
    assert len([each for each in told if " slow" in each and "staging" not in each]) == MAX_SLOWED
    (mine,) = [each for each in told if "slow this run" in each and "staging" not in each]
    assert mine.startswith(f"{30 - MAX_NAMED} others and ")
    few = words_beside(load("this run", 0, 4), others[: MAX_NAMED + 1], THIN)
    assert not any("others" in each for each in few), "one that is left is named"
    by_many, by_few = (float(each.rsplit("by ")[1].rstrip("%")) for each in (mine, few[0]))
    assert by_many > by_few > 0
    assert sum(map(len, told)) < 1000


def test_a_plan_is_told_with_what_it_puts_on_the_network() -> None:
    run, tree = trained_on(48), two_blocks()
    plan = plan_in_earnest(run, tree, frozenset()).plans[0]
    found = plan_beside(run, plan, tree, shapes=node_shapes(), loads={})
    assert [link.domains for link in found.load.links] == [(("b00", "r001"),)], "the other rack is all its own"
    assert found.told == ()
    beside = plan_beside(run, plan, tree, shapes=node_shapes(), loads={"run b": found.load})
    assert beside.load == found.load
    assert any(each.startswith("run b on the links of the rack of n0004 slows this run by ") for each in beside.told)
    with pytest.raises(KeyError):
        plan_beside(run, plan, tree, shapes={}, loads={})


def test_nothing_is_told_of_a_plan_that_is_kept_on_nodes_which_are_called_otherwise_now() -> None:
    run, tree = trained_on(48), two_blocks()
    plan = plan_in_earnest(run, tree, frozenset()).plans[0]
    renamed = tuple(replace(node, shape="p5e.48xlarge") if node.id == "n0000" else node for node in tree.nodes)
    found = plan_beside(run, plan, replace(tree, nodes=renamed), shapes=node_shapes(), loads={})
    assert found == Beside(load=None, told=())


def test_the_best_of_what_was_found_is_noted_beside_gangs_that_run() -> None:
    run, tree = trained_on(48), two_blocks()
    search = plan_in_earnest(run, tree, frozenset())
    load = plan_beside(run, search.plans[0], tree, shapes=node_shapes(), loads={}).load
    assert load is not None
    noted = with_note(search, run, tree, shapes=node_shapes(), loads={"run b": load})
    assert noted.plans == search.plans
    assert noted.notes[:-1] == search.notes
    assert noted.notes[-1].startswith("Beside others: run b on the links of the rack of n0004 slows this run by ")
    assert with_note(search, run, tree, shapes=node_shapes(), loads={}) is search
    nothing = replace(search, plans=())
    assert with_note(nothing, run, tree, shapes=node_shapes(), loads={"run b": load}) is nothing


def test_a_note_is_one_sentence_and_none_of_nothing() -> None:
    assert note_of(()) == ()
    assert note_of(("a slows b", "b slows a")) == ("Beside others: a slows b; b slows a.",)


def test_links_are_reckoned_as_they_were_measured() -> None:
    run, tree = trained_on(48), two_blocks()
    plan = plan_in_earnest(run, tree, frozenset()).plans[0]
    fast = NetworkLevel(level="block", bandwidth_bytes_per_s=50e9, is_measured=True)

    def measured(own: TopologyTree, shape: str) -> TopologyTree:
        assert shape == plan.node_shape
        return replace(own, network=(fast,))

    load = plan_beside(run, plan, tree, shapes=node_shapes(), loads={}).load
    assert load is not None
    told = plan_beside(run, plan, tree, shapes=node_shapes(), loads={"run b": load}, as_measured=measured).told
    assert not any("run b" in each for each in told), "it is wide enough for both"
    busy = with_busy_links(tree, {"run b": load}, node_shapes(), as_measured=measured)
    slow = with_busy_links(tree, {"run b": load}, node_shapes())
    assert 0 < max(max(each.busy_ratios, default=0.0) for each in busy.nodes) < 0.1
    assert max(max(each.busy_ratios, default=0.0) for each in slow.nodes) > 0.9
