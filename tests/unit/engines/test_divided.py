from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.agent.launchers.devices import NVIDIA
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.topology import Division
from airflow_llmsched.engines.divided import device_names, divisions, parse_divided, whole
from airflow_llmsched.engines.hosts.engine import HostsEngine
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import SpecError

MIG = {"slot": 1, "kind": "mig", "devices": ["MIG-aa", "MIG-bb"]}
TIME = {"slot": 3, "kind": "time", "slices": 3}


def gang_on(slot: int, *, vendor: str = "") -> GangSpec:
    return GangSpec(
        key=AttemptKey(run=RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), generation=0, attempt=1),
        placement=Placement(slots=(RankSlot(rank=0, node=NodeId("n0"), slot=slot, local_rank=0),)),
        layout=ParallelLayout(dp=1),
        command=("true",),
        channel_root="/tmp/channel",
        accelerator_vendor=vendor,
    )


def test_slices_are_slots_beside_the_whole_accelerators_and_what_is_divided_is_nobodys() -> None:
    divided = parse_divided([MIG, TIME], num_slots=4, at="divided")
    assert whole(4, divided, {0}) == (2,)
    assert divisions(divided, {2001, 4000}) == (
        Division(slot=1, kind="mig", slices=(2000, 2001), free=(2000,)),
        Division(slot=3, kind="time", slices=(4000, 4001, 4002), free=(4001, 4002)),
    )
    assert device_names(divided) == {2000: "MIG-aa", 2001: "MIG-bb", 4000: "3", 4001: "3", 4002: "3"}


def test_what_was_divided_while_a_gang_has_it_is_not_given_out_and_what_is_no_longer_divided_neither() -> None:
    divided = parse_divided([MIG, TIME], num_slots=4, at="divided")
    assert [each.free for each in divisions(divided, {0, 1, 2})] == [(), (4000, 4001, 4002)]
    assert whole(4, (), {2001}) == (0, 2, 3)


@pytest.mark.parametrize(
    ("plain", "complaint"),
    [
        ("MIG-aa", "must be a list"),
        ([3], r"divided\[0\] = 3: must have slot and kind"),
        ([{**MIG, "slot": 4}], r"divided\[0\]\.slot = 4: must be one of the node's slots, 0 to 3"),
        ([{**MIG, "kind": "mps"}], "must be mig or time"),
        ([{**MIG, "devices": ["GPU-aa"]}], "must list the MIG instances"),
        ([{**MIG, "devices": []}], "must list the MIG instances"),
        ([{**TIME, "slices": 1}], "from 2 to 64"),
        ([{**TIME, "speed": 1}], r"divided\[0\]\.speed: is not known"),
        ([MIG, {**TIME, "slot": 1}], "divides a slot twice"),
        ([MIG, {**MIG, "slot": 2}], "names a MIG instance twice"),
    ],
)
def test_what_makes_no_sense_is_refused_with_where_it_stands(plain: object, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        parse_divided(plain, num_slots=4, at="divided")


def test_a_process_on_a_slice_is_shown_that_slice_and_nothing_else(tmp_path: Path) -> None:
    engine = LocalEngine(root=str(tmp_path), num_nodes=1, slots_per_node=4, divided=[MIG])
    (part,) = engine.render(gang_on(2001, vendor=NVIDIA)).body["nodes"]
    assert (part["slots"], part["shown"]) == ([2001], ["MIG-bb"])
    assert "shown" not in engine.render(gang_on(0, vendor=NVIDIA)).body["nodes"][0]
    with pytest.raises(SpecError, match="slots 0 to 3, 2000, 2001 of node n0"):
        engine.render(gang_on(4))


def test_an_engines_tree_has_what_is_whole_as_slots_and_what_is_divided_as_divisions(tmp_path: Path) -> None:
    (node,) = LocalEngine(root=str(tmp_path), num_nodes=1, slots_per_node=4, divided=[MIG, TIME]).topology().nodes
    assert (node.num_slots, node.usable_slot_indexes, node.whole_slots) == (4, (0, 2), (0, 2))
    assert [each.free for each in node.divisions] == [(2000, 2001), (4000, 4001, 4002)]


def test_hosts_are_divided_too(tmp_path: Path) -> None:
    listed = [{"name": "n0", "address": "10.0.0.1", "slots": 4, "divided": [MIG]}]
    engine = HostsEngine(root=str(tmp_path), hosts=listed, user="u", key="/k", known_hosts="/h")
    (part,) = engine.render(gang_on(2000, vendor=NVIDIA)).body["nodes"]
    assert part["shown"] == ["MIG-aa"]
    listed[0]["divided"] = [{**MIG, "slot": 9}]
    with pytest.raises(SpecError, match=r"hosts\[0\]\.divided\[0\]\.slot"):
        HostsEngine(root=str(tmp_path), hosts=listed, user="u", key="/k", known_hosts="/h")
