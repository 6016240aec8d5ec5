from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_llmsched.codec import from_json, to_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.queue import (
    Limits,
    QueuedGang,
    QueueState,
    SliceAsk,
    SlicedSlot,
    SliceHold,
    SliceKind,
    TeamQuota,
    TeamUsage,
)
from tests.support.queues import CLASSES, gang, quota, racks, runs_on, state_of, waits


def test_a_gang_on_slices_needs_no_whole_accelerator():
    assert gang("a", 1, slices=SliceAsk()).num_slots == 0
    assert gang("a", 8, num_helper_slots=2).num_slots == 10


def test_a_state_survives_its_record():
    state = state_of(
        racks(2),
        runs_on(gang("a"), {"r0n0": 4}),
        waits(gang("b", slices=SliceAsk(kind=SliceKind.MIG))),
        quotas=(quota("red", 8, cohort="all"),),
        usage=(TeamUsage(team="red", accelerator_s=5.0, at_s=0.0),),
        sliced=(SlicedSlot(node=NodeId("r1n0"), slot=0, kind=SliceKind.MIG, num_slices=7),),
    )
    assert from_json(QueueState, to_json(state)) == state


def test_a_gang_of_an_older_record_requires_no_level_of_its_groups():
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    asked = gang("a", required_level="block", group_levels=(wish,))
    assert asked.levels == ("block", "rack")
    assert from_json(QueuedGang, to_json(asked)) == asked
    older = json.loads(to_json(asked))
    del older["group_levels"]
    assert from_json(QueuedGang, json.dumps(older)) == replace(asked, group_levels=())


def test_what_is_there_twice_is_refused_by_name():
    twice = SlicedSlot(node=NodeId("r0n0"), slot=0, kind=SliceKind.TIME, num_slices=2)
    with pytest.raises(ValueError, match="gang a is there twice"):
        state_of(racks(1), waits(gang("a")), runs_on(gang("a"), {"r0n0": 4}))
    with pytest.raises(ValueError, match=r"slot .*r0n0.* is there twice"):
        state_of(racks(1), runs_on(gang("a", 1), {"r0n0": 1}), runs_on(gang("b", 1), {"r0n0": 1}))
    with pytest.raises(ValueError, match="priority class low"):
        state_of(racks(1), classes=(*CLASSES, CLASSES[-1]))
    with pytest.raises(ValueError, match="quota of team red"):
        state_of(racks(1), quotas=(quota("red", 1), quota("red", 2)))
    with pytest.raises(ValueError, match="sliced slot"):
        state_of(racks(1), sliced=(twice, twice))


def test_an_unknown_class_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"gang a: no priority class 'vip'; known: \['low', 'normal', 'urgent'\]"):
        state_of(racks(1), waits(gang("a", cls="vip")))


def test_a_team_without_weight_is_refused():
    with pytest.raises(ValueError, match="weight must be above 0"):
        TeamQuota(team="red", nominal=Limits(), weight=0.0)


def test_a_running_gang_counts_what_it_holds():
    assert runs_on(gang("a", 6), {"r0n0": 4, "r0n1": 2}).num_held == 6
    assert runs_on(gang("a", 1), {}, slices=SliceHold(node=NodeId("r0n0"), slot=0, num_slices=1)).num_held == 0
