from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.gang import GangRole, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import HelperSlot, Placement, RankSlot
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.engines.agent_request import (
    agent_body,
    check_gang,
    held_slots,
    is_attempt_name,
    key_of,
    members_on,
)
from airflow_llmsched.errors import SpecError

NODES = (NodeId("n0"), NodeId("n1"))
SLOTS = dict.fromkeys(NODES, 2)


def gang(**changes: Any) -> GangSpec:
    slots = tuple(
        RankSlot(rank=rank, node=NODES[rank // 2], slot=1 - rank % 2, local_rank=rank % 2) for rank in range(4)
    )
    return replace(
        GangSpec(
            key=AttemptKey(run=RunKey("ls-abcdefghij0123456789"), generation=2, attempt=3),
            placement=Placement(slots=slots),
            layout=ParallelLayout(dp=4, zero_stage=2, micro_batch_size=8, num_micro_batches=2),
            command=("python", "-m", "train", "--name", 'it\'s "odd" $(touch x)'),
            channel_root="/state/runs/x/channel",
            launcher=Launcher.TORCHRUN,
            environment={"LLMSCHED_DATASET": "/data/manifest.json", "A": "line one\nline two"},
            lease_s=90.0,
            origin=RunOrigin(
                deployment_id="3c9d", run=RunKey("ls-abcdefghij0123456789"), dag_id="pretrain", run_id="manual"
            ),
        ),
        **changes,
    )


def test_nodes_on_machines_of_their_own_have_addresses() -> None:
    body = agent_body(gang(), addresses={NodeId("n0"): "10.0.0.1", NodeId("n1"): "fd00::2"})
    assert [each["address"] for each in body["nodes"]] == ["10.0.0.1", "fd00::2"]
    assert all("address" not in each for each in agent_body(gang())["nodes"])


def test_attempt_names_are_single_path_components() -> None:
    assert is_attempt_name("ls-abc-g1-a1")
    for name in ("", ".", "..", ".new-1", "x", "a/b-g1-a1", "a b-g1-a1", "x" * 129 + "-g1-a1", "a-g1-a1\n", "-x-g1-a1"):
        assert not is_attempt_name(name), name


def place(*places: tuple[str, int]) -> Placement:
    return Placement(
        slots=tuple(
            RankSlot(rank=rank, node=NodeId(node), slot=slot, local_rank=0) for rank, (node, slot) in enumerate(places)
        )
    )


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"key": AttemptKey(run=RunKey("../../etc"), generation=1, attempt=1)}, "key.run"),
        ({"key": AttemptKey(run=RunKey("x" * 200), generation=1, attempt=1)}, "key.run"),
        ({"command": ()}, "command"),
        ({"command": ("",)}, "command"),
        ({"command": ("python", "a\0b")}, "command"),
        ({"channel_root": "relative/path"}, "channel_root"),
        ({"channel_root": "s3://bucket/channel"}, "channel_root"),
        ({"channel_root": "s3://bucket/channel", "channel_links": "relative/path"}, "channel_links"),
        ({"environment": {"A=B": "x"}}, "environment"),
        ({"environment": {"": "x"}}, "environment"),
        ({"environment": {"A": "x\0"}}, "environment"),
        ({"environment": {"LLMSCHED_SPOOL": "/elsewhere"}}, "environment"),
        ({"start_limit_s": 0.0}, "start_limit_s"),
        ({"flush_interval_s": float("nan")}, "flush_interval_s"),
        ({"grace_s": -1.0}, "grace_s"),
        ({"exit_grace_s": -0.1}, "exit_grace_s"),
        ({"layout": ParallelLayout(dp=2)}, "placement"),
        ({"placement": place(("n0", 0), ("n0", 1), ("n1", 0), ("n7", 0))}, "placement"),
        ({"placement": place(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 2))}, "placement"),
        ({"placement": place(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 0))}, "placement"),
        ({"placement": Placement(slots=tuple(reversed(gang().placement.slots)))}, "placement"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_the_field_that_is_wrong(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_gang(gang(**changes), slots=SLOTS)
    assert refused.value.path == path


def test_ranks_in_any_order_are_for_the_plain_launcher_alone() -> None:
    mixed = place(("n0", 0), ("n1", 0), ("n0", 1), ("n1", 1))
    check_gang(gang(placement=mixed, launcher=Launcher.PLAIN), slots=SLOTS)
    with pytest.raises(SpecError, match="counts them through"):
        check_gang(gang(placement=mixed), slots=SLOTS)


def test_value_of_a_refused_environment_entry_is_not_shown() -> None:
    with pytest.raises(SpecError) as refused:
        check_gang(gang(environment={"TOKEN": "tell-no-one\0"}), slots=SLOTS)
    assert "tell-no-one" not in str(refused.value)


LOADER, EVALUATOR = RoleKind.DATA_LOADER, RoleKind.EVALUATOR
ROLES = (GangRole(kind=LOADER, command=("load",)), GangRole(kind=EVALUATOR, command=("evaluate",)))


def with_helpers(*helpers: HelperSlot, roles: tuple[GangRole, ...] = ROLES) -> GangSpec:
    ranks = place(("n0", 0), ("n0", 1), ("n1", 0)).slots
    return gang(layout=ParallelLayout(dp=3), placement=Placement(slots=ranks, helpers=helpers), roles=roles)


def test_helpers_are_numbered_from_the_world_size_on_and_stand_on_their_nodes() -> None:
    body = agent_body(
        with_helpers(
            HelperSlot(role=LOADER, index=0, node=NodeId("n0")),
            HelperSlot(role=LOADER, index=1, node=NodeId("n1")),
            HelperSlot(role=EVALUATOR, index=0, node=NodeId("n1"), slots=(1,)),
        )
    )
    assert body["world_size"] == 3
    assert [each.get("helpers") for each in body["nodes"]] == [
        [{"role": "data_loader", "index": 0, "member": 3, "slots": []}],
        [
            {"role": "data_loader", "index": 1, "member": 4, "slots": []},
            {"role": "evaluator", "index": 0, "member": 5, "slots": [1]},
        ],
    ]
    assert body["roles"] == {
        "data_loader": {"command": ["load"], "num_ranks": 2},
        "evaluator": {"command": ["evaluate"], "num_ranks": 1},
    }
    assert [held_slots(each) for each in body["nodes"]] == [[0, 1], [0, 1]]
    assert [members_on(each) for each in body["nodes"]] == [[0, 1, 3], [2, 4, 5]]


def test_a_gang_of_trainers_alone_says_nothing_of_roles_and_one_without_accelerators_nothing_of_devices() -> None:
    assert not {"roles", "devices"} & agent_body(gang()).keys()


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "google"])
def test_the_agent_shows_accelerators_unless_the_engine_does(vendor: str) -> None:
    accelerated = gang(accelerator_vendor=vendor)
    assert agent_body(accelerated)["devices"] == {"vendor": vendor}
    assert "devices" not in agent_body(accelerated, binds_devices=True)
    assert "devices" not in agent_body(gang(accelerator_vendor="cpu"))


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (with_helpers(HelperSlot(role=EVALUATOR, index=0, node=NodeId("n1"), slots=(0,))), "at most once"),
        (with_helpers(HelperSlot(role=EVALUATOR, index=0, node=NodeId("n1"), slots=(2,))), "slots 0 to 1"),
        (with_helpers(HelperSlot(role=EVALUATOR, index=0, node=NodeId("n9"))), "engine's nodes"),
        (with_helpers(HelperSlot(role=LOADER, index=1, node=NodeId("n0"))), "each data_loader in order"),
        (with_helpers(HelperSlot(role=LOADER, index=0, node=NodeId("n0")), roles=()), "nothing to run"),
        (with_helpers(roles=(GangRole(kind=LOADER, command=("",)),)), "program to run"),
    ],
)
def test_helpers_that_cannot_be_launched_are_refused(spec: GangSpec, hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        check_gang(spec, slots=SLOTS)


def test_an_attempts_name_says_which_it_is_and_nothing_else_does() -> None:
    key = AttemptKey(run=RunKey("ls-a-g1-a1"), generation=12, attempt=3)
    assert key_of(key.name) == key
    with pytest.raises(ValueError, match="no attempt's name"):
        key_of("../ls-abc-g1-a1")
