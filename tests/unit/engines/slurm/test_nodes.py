from __future__ import annotations

import pytest

from airflow_llmsched.engines.slurm.nodes import NodeRecord, from_rest_node, from_scontrol_node

# As scontrol of 22.05 prints it.
LINE = (
    "NodeName=n4 Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=5.86 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:h100:8 GresDrain=N/A GresUsed=gpu:h100:3(IDX:0-2) NodeAddr=127.0.0.1 "
    "NodeHostName=localhost Port=27104 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1000000 "
    "AllocMem=0 FreeMem=18699 Sockets=2 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "Partitions=low,high  BootTime=2026-11-29T14:21:48 CfgTRES=cpu=64,mem=1000000M,billing=64 AllocTRES= CapWatts=n/a "
    "ExtSensorsTemp=n/s Reason=bad gpu 3 [root@2026-11-30T05:00:51]"
)
REST_0_0_38 = {
    "name": "n4",
    "address": "127.0.0.1",
    "state": "idle",
    "state_flags": ["DRAIN"],
    "reason": "bad gpu 3",
    "gres": "gpu:h100:8",
    "gres_used": "gpu:h100:3(IDX:0-2)",
    "partitions": ["low", "high"],
}


def test_a_node_is_read_from_scontrol() -> None:
    node = from_scontrol_node(LINE)
    assert (node.name, node.address, node.states) == ("n4", "127.0.0.1", ("IDLE", "DRAIN"))
    assert (node.gres, node.used, node.partitions) == ("gpu:h100:8", "gpu:h100:3(IDX:0-2)", ("low", "high"))
    assert node.reason == "bad gpu 3 [root@2026-11-30T05:00:51]"


def test_old_and_new_forms_of_slurmrestd_say_the_same() -> None:
    new = {name: value for name, value in REST_0_0_38.items() if name != "state_flags"} | {"state": ["IDLE", "DRAIN"]}
    assert from_rest_node(REST_0_0_38) == from_rest_node(new)
    assert from_rest_node(new).unusable_reason(has_reservation=False) == "idle+drain: bad gpu 3"


def test_a_node_without_jobs_that_has_yet_to_report_has_nothing_in_use() -> None:
    """A restarted controller counts what its jobs had, and 22.05 prints this after the last one ended."""
    line = LINE.replace("IDLE+DRAIN", "IDLE").replace("gpu:h100:3(IDX:0-2)", "gpu:h100:3")
    silent = line.replace("CfgTRES", "SlurmdStartTime=None LastBusyTime=1796052774 CfgTRES")
    assert from_scontrol_node(silent).in_use == ""
    assert from_scontrol_node(silent.replace("=None", "=1796052763")).in_use == "gpu:h100:3"  # of a suspended job
    assert from_scontrol_node(silent.replace("State=IDLE", "State=MIXED")).in_use == "gpu:h100:3"
    assert from_scontrol_node(line).in_use == "gpu:h100:3"


@pytest.mark.parametrize("never", [0, None, {"set": True, "number": 0}, {"set": False, "number": 0}])
def test_slurmrestd_says_in_several_forms_that_a_node_has_yet_to_report(never: object) -> None:
    node = {**REST_0_0_38, "state_flags": []}
    assert from_rest_node({**node, "slurmd_start_time": never}).in_use == ""
    for told in ({}, {"slurmd_start_time": 1796052763}, {"slurmd_start_time": {"set": True, "number": 1796052763}}):
        assert from_rest_node({**node, **told}).in_use == "gpu:h100:3(IDX:0-2)"


def test_what_is_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match="not asked for"):
        from_scontrol_node("slurm_load_node error: Unable to contact slurm controller")


def node(state: str) -> NodeRecord:
    return from_scontrol_node(LINE.replace("IDLE+DRAIN", state))


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED", "IDLE+PLANNED", "IDLE+CLOUD+POWERED_DOWN", "IDLE~", "MIXED+COMPLETING"]
)
def test_nodes_that_slurm_places_jobs_on_may_be_used(state: str) -> None:
    assert node(state).unusable_reason(has_reservation=False) is None


@pytest.mark.parametrize(
    "state",
    [
        "DOWN",
        "DOWN*",
        "IDLE*",
        "IDLE+DRAIN",
        "ALLOCATED+DRAIN",
        "DRAINED",
        "FAIL",
        "ERROR",
        "UNKNOWN",
        "FUTURE",
        "IDLE^",
        "IDLE+NOT_RESPONDING",
        "IDLE+REBOOT_ISSUED",
        "IDLE+POWERING_DOWN",
        "IDLE+INVALID_REG",
        "MELTED",
    ],
)
def test_every_other_node_is_kept_from_and_says_why(state: str) -> None:
    assert "bad gpu 3" in str(node(state).unusable_reason(has_reservation=True))


@pytest.mark.parametrize("state", ["IDLE+RESERVED", "IDLE+MAINT", "IDLE$"])
def test_reserved_nodes_are_for_those_who_have_a_reservation(state: str) -> None:
    assert node(state).unusable_reason(has_reservation=True) is None
    assert node(state).unusable_reason(has_reservation=False) is not None


def test_a_state_that_is_no_word_is_loud() -> None:
    with pytest.raises(ValueError, match="not understood"):
        node("0x10")


def test_nodes_with_jobs_are_taken() -> None:
    assert node("MIXED+PLANNED").is_taken
    assert not node("IDLE+PLANNED").is_taken
