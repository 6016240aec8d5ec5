from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.clouds.azure import view
from airflow_llmsched.clouds.azure.tags import LeaseTags, to_tags
from airflow_llmsched.clouds.azure.view import SetRows
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError

KEY = LeaseKey(run=RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), generation=1, rental=3)
NAME = KEY.name
CREATED_S = 1_750_000_000.0
LATER_S = CREATED_S + 600.0


def said(capacity_type: CapacityType = CapacityType.SPOT, num_nodes: int = 3) -> LeaseTags:
    pool = Pool(cloud="azure", region="eastus", zone="eastus-1", shape="ND", capacity_type=capacity_type)
    origin = RunOrigin(deployment_id="d", run=KEY.run)
    return LeaseTags(key=KEY, pool=pool, num_nodes=num_nodes, expires_at_s=LATER_S + 3600.0, origin=origin)


def set_row(state: str = "Succeeded", lease: LeaseTags | None = None, **more: Any) -> dict[str, Any]:
    properties = {"provisioningState": state, "timeCreated": "2025-06-15T15:06:40.1234567+00:00"}
    return {"name": NAME, "location": "eastus", "tags": to_tags(lease or said()), "properties": properties} | more


def machine(number: int, power: str = "running", state: str = "Succeeded") -> dict[str, Any]:
    view_ = {"statuses": [{"code": f"PowerState/{power}"}], "placementGroupId": "pg-1"}
    properties = {"provisioningState": state, "instanceView": view_}
    return {"name": f"{NAME}_{number}", "instanceId": str(number), "properties": properties}


def look(row: dict[str, Any], *machines: dict[str, Any], now_s: float = LATER_S, failure: str = "") -> Lease:
    lease = view.lease_of(SetRows(row=row, machines=machines, failure=failure), now_s=now_s, consistency_s=60.0)
    assert lease is not None
    return lease


def states(lease: Lease) -> list[str]:
    return [f"{node.id.removeprefix(NAME)} {node.state}" for node in lease.nodes]


def test_a_lease_is_active_once_all_of_its_machines_run() -> None:
    assert look(set_row(), machine(0), machine(1), machine(2)).state is LeaseState.ACTIVE
    starting = look(set_row(), machine(0), machine(1), machine(2, "starting"))
    assert (starting.state, starting.reason) == (LeaseState.PENDING, "2 of 3 nodes run so far")
    assert look(set_row("Creating"), machine(0), machine(1), machine(2)).state is LeaseState.PENDING


def test_a_machine_that_vanished_is_named_by_the_number_that_no_other_has() -> None:
    """Field case E11: an evicted machine is not listed any more."""
    lease = look(set_row(), machine(2), machine(0))
    assert states(lease) == ["_0 running", "_1 preempted", "_2 running"]
    assert [node.is_off for node in lease.nodes] == [False, True, False]
    assert (lease.state, lease.reason) == (LeaseState.BROKEN, "1 of 3 nodes are gone")


def test_a_machine_is_off_once_it_has_stopped() -> None:
    lease = look(set_row(), machine(0, "deallocated"), machine(1, "deallocating"), machine(2, "stopped"))
    assert [node.is_off for node in lease.nodes] == [True, False, True]


def test_on_demand_machines_that_vanish_are_lost_not_preempted() -> None:
    on_demand = said(CapacityType.ON_DEMAND)
    assert states(look(set_row(lease=on_demand), machine(0), machine(1))) == ["_0 running", "_1 running", "_2 lost"]


def test_numbers_that_azure_skipped_make_no_machine_missing() -> None:
    lease = look(set_row(), machine(0), machine(2), machine(3))
    assert (lease.state, len(lease.nodes)) == (LeaseState.ACTIVE, 3)
    assert len(look(set_row(), machine(2), machine(3)).nodes) == 3


def test_what_is_not_listed_yet_is_not_gone() -> None:
    assert look(set_row(), machine(0), now_s=CREATED_S + 59.0).state is LeaseState.PENDING
    assert look(set_row(), machine(0), now_s=CREATED_S + 61.0).state is LeaseState.BROKEN


def test_a_failed_set_breaks_the_lease_and_says_why() -> None:
    assert (
        look(set_row("Failed"), machine(0), failure="AllocationFailed: none left").reason
        == "AllocationFailed: none left"
    )
    silent = look(set_row("Failed"))
    assert silent.state is LeaseState.BROKEN
    assert "does not say why" in silent.reason
    assert silent.nodes == ()


def test_a_set_that_is_being_removed_is_still_paid_for() -> None:
    lease = look(set_row("Deleting"), machine(0, state="Deleting"))
    assert (lease.state, lease.reason) == (LeaseState.BROKEN, "Azure is removing it")


def test_a_set_in_an_unknown_state_is_there_and_none_of_its_machines_is_missed() -> None:
    lease = look(set_row("Resting"), machine(0))
    assert (lease.state, [node.state for node in lease.nodes]) == (LeaseState.PENDING, [LeasedNodeState.RUNNING])


def test_a_node_is_reached_by_the_first_private_address_of_its_interface() -> None:
    interface = {
        "properties": {
            "virtualMachine": {"id": f"/x/virtualMachineScaleSets/{NAME}/virtualMachines/1"},
            "ipConfigurations": [
                {"properties": {"privateIPAddress": "10.0.0.5"}},
                {"properties": {"privateIPAddress": "10.0.0.6"}},
            ],
        }
    }
    rows = SetRows(row=set_row(), machines=[machine(0), machine(1), machine(2)], interfaces=[interface, {}])
    lease = view.lease_of(rows, now_s=LATER_S, consistency_s=60.0)
    assert lease is not None
    assert [node.address for node in lease.nodes] == ["", "10.0.0.5", ""]


def test_a_set_whose_tags_were_stripped_is_still_ours_by_its_name_and_has_expired() -> None:
    stripped = set_row(
        tags=None, zones=["2"], sku={"name": "ND", "capacity": 2}, properties={"provisioningState": "Succeeded"}
    )
    lease = look(stripped)
    assert (lease.id, lease.num_nodes, lease.expires_at_s, lease.origin) == (f"eastus/{NAME}", 2, 0.0, None)
    assert lease.pool.zone == "eastus-2"
    stripped["properties"]["virtualMachineProfile"] = {"priority": "Spot"}
    assert look(stripped).pool.capacity_type is CapacityType.SPOT


def test_the_sets_of_others_are_no_leases() -> None:
    assert view.lease_of(SetRows(row=set_row(tags={}, name="web")), now_s=0.0, consistency_s=0.0) is None


def test_ids_lead_to_sets_and_back() -> None:
    assert view.lease_id(said().pool, KEY) == f"eastus/{NAME}"
    assert view.set_name(LeaseId(f"eastus/{NAME}")) == NAME
    assert view.set_name(LeaseId(f"eastus/{NAME}_0")) == view.set_name(LeaseId("eastus/web")) == ""


def test_what_is_left_when_the_machines_are_gone_is_a_broken_lease_of_leftovers() -> None:
    bare = {"id": "/disks/a", "name": f"{NAME}_0_OsDisk"}
    tagged = {"id": "/nics/b", "name": "b", "tags": to_tags(said())}
    for rows in ([bare, tagged], [tagged, bare]):
        lease = view.remains_of(rows)
        assert (lease.state, lease.nodes, set(lease.leftovers)) == (LeaseState.BROKEN, (), {"/disks/a", "/nics/b"})
        assert (lease.origin, lease.expires_at_s) == (said().origin, said().expires_at_s)
    assert view.remains_of([bare]).origin is None
    with pytest.raises(InternalError):
        view.remains_of([{"id": "/disks/c", "name": "c"}])


@pytest.mark.parametrize(
    ("row", "loose"),
    [
        ({"name": "disk"}, True),
        ({"name": "disk", "managedBy": "/vm"}, False),
        ({"name": "nic", "properties": {"virtualMachine": {"id": "/vm"}}}, False),
        ({"name": "ip", "properties": {"ipConfiguration": {"id": "/nic"}}}, False),
        ({"name": "ip", "properties": {"ipConfiguration": None}}, True),
    ],
)
def test_a_part_hangs_on_something_or_is_loose(row: dict[str, Any], loose: bool) -> None:
    assert view.is_loose(row) is loose


def test_a_part_belongs_to_the_lease_that_its_tags_or_its_name_say() -> None:
    assert view.belongs_to({"name": f"{NAME}_0_OsDisk_1_5f"}, NAME)
    assert view.belongs_to({"name": "public-7", "tags": {"llmsched-lease": NAME}}, NAME)
    assert not view.belongs_to({"name": f"{NAME}1_0_OsDisk"}, NAME)
    assert not view.belongs_to({"name": "other"}, NAME)


def test_nodes_hang_in_their_placement_group_and_gone_ones_nowhere() -> None:
    lease = look(set_row(), machine(0), machine(1))
    tree = view.tree_of(lease, [machine(0), machine(1)], num_slots=8)
    assert tree.levels == ("region", "zone", "placement_group")
    assert [(node.id, node.path, node.num_free_slots) for node in tree.nodes] == [
        (f"{NAME}_0", ("eastus", "eastus-1", "pg-1"), 8),
        (f"{NAME}_1", ("eastus", "eastus-1", "pg-1"), 8),
    ]
    assert view.tree_of(lease, [], num_slots=8).nodes[0].path[2] == NAME


def test_a_lease_that_is_ordered_and_not_listed_is_pending() -> None:
    lease = view.pending(said())
    assert (lease.state, lease.id, lease.nodes) == (LeaseState.PENDING, f"eastus/{NAME}", ())


def test_machines_are_counted_as_numbers_not_as_text() -> None:
    many = said(num_nodes=12)
    lease = look(set_row(lease=many), *(machine(number) for number in range(12)))
    assert [node.id.rpartition("_")[2] for node in lease.nodes] == [str(number) for number in range(12)]
    assert LeasedNodeState.PREEMPTED not in {node.state for node in lease.nodes}
