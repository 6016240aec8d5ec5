"""Answers of Slurm 22.05, as its clients and slurmrestd gave them, and forms of newer versions."""

from __future__ import annotations

import pytest

from airflow_llmsched.engines.slurm import records
from airflow_llmsched.engines.slurm.records import (
    by_job,
    from_completion,
    from_rest,
    from_sacct,
    from_scontrol,
    from_squeue,
)

NAME = "ls-abcdefghij0123456789-g1-a1"


def squeue(**changes: str) -> str:
    """One line of ``squeue`` with our format, columns padded as it pads them."""
    said = {
        "JobID": "7",
        "HetJobID": "N/A",
        "HetJobOffset": "N/A",
        "State": "RUNNING",
        "exit_code": "0",
        "RestartCnt": "0",
        "SubmitTime": "1796013785",
        "StartTime": "1796013786",
        "EndTime": "NONE",
        "NodeList": "n[1-2]",
        "Reason": "None",
        "Name": NAME,
        "Comment": "llmsched:1:abc",
        **changes,
    }
    return "".join(f"{said[name]:<{width}}|" for name, width in records._WIDTHS.items())


SCONTROL = (
    f"JobId=1 JobName={NAME} UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 "
    "Account=(null) QOS=(null) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 "
    "BatchFlag=1 Reboot=0 ExitCode=3:0 RunTime=00:00:02 TimeLimit=365-00:00:00 TimeMin=N/A SubmitTime=1796013785 "
    "EligibleTime=1796013785 AccrueTime=1796013785 StartTime=1796013786 EndTime=1796013788 Deadline=N/A "
    "PreemptTime=None Partition=low ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2 "
    "CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=2000M,node=2,billing=2 Command=(null) WorkDir=/tmp/a b "
    "Comment=llmsched:1:abc  StdErr=/tmp/o.1 Power= TresPerNode=gres:gpu:4 "
)
COMPLETION = (
    f"JobId=1 UserId=root(0) GroupId=root(0) Name={NAME} JobState=FAILED Partition=low TimeLimit=525600 "
    "StartTime=2026-11-30T04:43:06 EndTime=2026-11-30T04:43:08 NodeList=n[1-2] NodeCnt=2 ProcCnt=2 WorkDir=/tmp "
    "ReservationName= Tres=cpu=2,mem=2000M,node=2,billing=2 Account= QOS= WcKey= Cluster=unknown "
    "SubmitTime=2026-11-30T04:43:05 EligibleTime=2026-11-30T04:43:05 DerivedExitCode=0:0 ExitCode=3:0 \n"
)


def test_a_line_of_squeue_is_read() -> None:
    record = from_squeue(squeue())
    assert (record.job_id, record.part, record.name, record.state.word) == ("7", 0, NAME, "RUNNING")
    assert (record.exit_code, record.signal, record.reason) == (0, None, "")
    assert record.nodes == ("n1", "n2")
    assert (record.submitted_at_s, record.started_at_s, record.ended_at_s) == (1796013785.0, 1796013786.0, None)
    assert record.comment == "llmsched:1:abc"


def test_squeue_gives_exit_codes_as_wait_does() -> None:
    assert (from_squeue(squeue(exit_code="768")).exit_code, from_squeue(squeue(exit_code="768")).signal) == (3, None)
    assert (from_squeue(squeue(exit_code="9")).exit_code, from_squeue(squeue(exit_code="9")).signal) == (0, 9)


def test_a_stranger_whose_job_is_called_oddly_hurts_nobody() -> None:
    record = from_squeue(squeue(Name="a|b|RUNNING", Comment="x|y"))
    assert record.name == "a"
    assert record.state.word == "RUNNING"


def test_a_part_of_a_heterogeneous_job_belongs_to_its_first() -> None:
    record = from_sacct(f"12+1|RUNNING|0:0|1796013785|1796013786|Unknown|m1|None|{NAME}|")
    assert (record.job_id, record.part) == ("12", 1)
    record = from_squeue(squeue(JobID="13", HetJobID="12", HetJobOffset="1"))
    assert (record.job_id, record.part) == ("12", 1)


@pytest.mark.parametrize("line", ["", "slurm_load_jobs error: Unable to contact slurm controller", "a|b"])
def test_what_squeue_prints_otherwise_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not asked for"):
        from_squeue(line)


def test_a_node_list_that_squeue_cut_off_is_read_as_far_as_it_is_whole() -> None:
    whole = "n[1-2]," * 300
    assert from_squeue(squeue(NodeList=whole[:2000])).nodes == ("n1", "n2") * 285
    assert from_squeue(squeue(NodeList=("n[" + "1," * 1000)[:2000])).nodes == ()


def test_sacct_names_who_cancelled() -> None:
    line = f"9|CANCELLED by 1001|0:15|1796013785|1796013786|1796013790|n[1-2]|None|{NAME}|llmsched:1:abc"
    record = from_sacct(line + "\n")
    assert (record.state.word, record.cancelled_by, record.signal) == ("CANCELLED", "1001", 15)
    assert record.ended_at_s == 1796013790.0


def test_sacct_knows_a_job_that_never_started() -> None:
    record = from_sacct(f"9|PENDING|0:0|1796013785|Unknown|Unknown|None assigned|None|{NAME}|")
    assert (record.nodes, record.started_at_s, record.ended_at_s) == ((), None, None)


# As sacct of 22.05 printed them, with slurmdbd on MariaDB, of jobs that were made to end so.
SACCT = """\
1|COMPLETED|0:0|1796017873|1796017873|1796017874|n[1-2]|None|ls-ok|llmsched:1:abc=
2|FAILED|3:0|1796017873|1796017873|1796017873|n1|None|ls-fail|llmsched:1:abc=
3|CANCELLED by 0|0:0|1796017873|1796017873|1796017879|n1|None|sbatch|llmsched:1:abc=
4|PENDING|0:0|1796017873|Unknown|Unknown|None assigned|BeginTime|sbatch|
5|FAILED|0:9|1796017873|1796017873|1796017873|n1|None|sbatch|llmsched:1:abc=
6+0|COMPLETED|0:0|1796017873|1796017875|1796017876|n1|None|sbatch|llmsched:1:abc=
6+1|COMPLETED|0:0|1796017873|1796017875|1796017876|n2|None|sbatch|llmsched:1:abc=
8|NODE_FAIL|0:0|1796017873|1796017875|1796017879|n4|None|sbatch|llmsched:1:abc=
9|PENDING|0:0|1796017879|Unknown|Unknown|None assigned|BeginTime|sbatch|
"""


def test_what_accounting_keeps_of_real_jobs_is_read() -> None:
    found = by_job(map(from_sacct, SACCT.splitlines()))
    assert {job: record.state.word for job, record in found.items()} == {
        "1": "COMPLETED",
        "2": "FAILED",
        "3": "CANCELLED",
        "4": "PENDING",
        "5": "FAILED",
        "6": "COMPLETED",
        "8": "NODE_FAIL",
        "9": "PENDING",
    }
    assert (found["2"].exit_code, found["5"].signal, found["3"].cancelled_by) == (3, 9, "0")
    assert (found["6"].nodes, found["1"].ended_at_s) == (("n1", "n2"), 1796017874.0)


def test_scontrol_is_read() -> None:
    record = from_scontrol(SCONTROL)
    assert (record.job_id, record.name, record.state.word) == ("1", NAME, "FAILED")
    assert (record.exit_code, record.num_restarts, record.reason) == (3, 2, "NonZeroExitCode")
    assert record.nodes == ("n1", "n2")
    assert record.comment == "llmsched:1:abc"


def test_a_job_cannot_forge_what_scontrol_says_of_it() -> None:
    record = from_scontrol(SCONTROL.replace("WorkDir=/tmp/a b", "WorkDir=/tmp/a JobState=COMPLETED"))
    assert record.state.word == "FAILED"


def test_a_line_of_the_completion_file_is_read() -> None:
    record = from_completion(COMPLETION)
    assert (record.job_id, record.name, record.state.word) == ("1", NAME, "FAILED")
    assert (record.exit_code, record.nodes) == (3, ("n1", "n2"))


REST_0_0_38 = {
    "job_id": 1,
    "name": NAME,
    "job_state": "FAILED",
    "state_reason": "NonZeroExitCode",
    "exit_code": 768,
    "restart_cnt": 0,
    "nodes": "n[1-2]",
    "submit_time": 1796013785,
    "start_time": 1796013786,
    "end_time": 1796013788,
    "comment": "llmsched:1:abc",
    "het_job_id": 0,
    "het_job_offset": 0,
}
REST_0_0_41 = {
    **REST_0_0_38,
    "job_state": ["FAILED"],
    "exit_code": {
        "status": ["ERROR"],
        "return_code": {"set": True, "infinite": False, "number": 3},
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
    "submit_time": {"set": True, "infinite": False, "number": 1796013785},
    "start_time": {"set": True, "infinite": False, "number": 1796013786},
    "end_time": {"set": True, "infinite": False, "number": 1796013788},
    "het_job_id": {"set": False, "infinite": False, "number": 0},
    "het_job_offset": {"set": False, "infinite": False, "number": 0},
}


def test_old_and_new_forms_of_slurmrestd_say_the_same() -> None:
    record = from_rest(REST_0_0_38)
    assert record == from_rest(REST_0_0_41)
    assert (record.state.word, record.exit_code, record.nodes) == ("FAILED", 3, ("n1", "n2"))


def test_flags_of_slurmrestd_count() -> None:
    assert from_rest({**REST_0_0_41, "job_state": ["PREEMPTED", "COMPLETING"]}).state.word == "COMPLETING"


def test_a_signal_of_slurmrestd_is_read_in_both_forms() -> None:
    code = {"return_code": {"set": False, "number": 0}, "signal": {"id": {"set": True, "number": 9}, "name": "KILL"}}
    assert from_rest({**REST_0_0_38, "exit_code": 9}).signal == 9
    assert from_rest({**REST_0_0_41, "exit_code": code}).signal == 9
    assert from_rest({**REST_0_0_38, "exit_code": {"return_code": 0, "signal": {"signal_id": 0}}}).signal is None


def test_of_a_requeued_job_the_last_record_counts() -> None:
    first = from_completion(COMPLETION.replace("JobState=FAILED", "JobState=NODE_FAIL"))
    last = from_completion(COMPLETION)
    assert by_job([first, last]) == {"1": last}


def test_parts_of_a_heterogeneous_job_are_one() -> None:
    parts = [
        from_squeue(squeue(JobID="13", HetJobID="12", HetJobOffset="1", NodeList="m1")),
        from_squeue(squeue(JobID="12", HetJobID="12", HetJobOffset="0")),
    ]
    assert by_job(parts)["12"].nodes == ("n1", "n2", "m1")


def test_a_part_that_lost_a_node_explains_the_whole_jobs_failure() -> None:
    parts = [
        from_squeue(squeue(JobID="12", HetJobID="12", HetJobOffset="0", State="FAILED", exit_code="256")),
        from_squeue(squeue(JobID="13", HetJobID="12", HetJobOffset="1", State="NODE_FAIL", NodeList="m1")),
    ]
    joined = by_job(parts)["12"]
    assert (joined.state.word, joined.exit_code) == ("NODE_FAIL", 1)
