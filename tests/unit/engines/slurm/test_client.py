"""What the commands are asked and how their answers read; tests/integration/test_slurm_engine.py asks the real ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_llmsched.engines.slurm.client import SlurmCli
from airflow_llmsched.engines.slurm.replies import Job
from airflow_llmsched.engines.slurm.runner import Completed
from airflow_llmsched.errors import CouldNotLookError, LaunchError
from tests.unit.engines.slurm.test_records import squeue


class Says:
    """A runner with an answer for each command; it keeps what it was asked."""

    def __init__(self, **answers: Completed) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []
        self.stdin = ""

    def run(self, argv: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        assert 0 < limit_s <= 60
        self.asked.append(list(argv))
        self.stdin = stdin
        return self._answers[argv[0]]


def said(stdout: str = "", *, stderr: str = "", exit_code: int = 0) -> Completed:
    return Completed(exit_code=exit_code, stdout=stdout, stderr=stderr)


def refused(stderr: str) -> Completed:
    return said(stderr=stderr, exit_code=1)


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("15786755\n", Job(id="15786755")),
        ("Submitted batch job 60060368 on cluster slaking\n", Job(id="60060368", cluster="slaking")),
        ("481417;mpp2\n", Job(id="481417", cluster="mpp2")),
    ],
)
def test_script_goes_in_by_standard_input_and_the_job_comes_back(text: str, job: Job) -> None:
    """Field case C19."""
    runner = Says(sbatch=said(text))
    assert SlurmCli(runner=runner).submit("#!/bin/bash\ntrue\n", parts=[]) == job
    assert runner.asked == [["sbatch", "--parsable"]]
    assert runner.stdin == "#!/bin/bash\ntrue\n"


def test_cancelling_names_the_job_and_its_cluster_and_nothing_else() -> None:
    """Field case C21."""
    runner = Says(scancel=said())
    SlurmCli(runner=runner).cancel(Job(id="60060368", cluster="slaking"))
    SlurmCli(runner=runner, cluster="own").cancel(Job(id="7"))
    assert runner.asked == [["scancel", "--clusters=slaking", "60060368"], ["scancel", "--clusters=own", "7"]]


@pytest.mark.parametrize("text", ["scancel: error: Kill job error on job id 7: Invalid job id specified"])
def test_job_that_is_gone_is_cancelled(text: str) -> None:
    SlurmCli(runner=Says(scancel=refused(text))).cancel(Job(id="7"))


def test_cancelling_that_may_have_failed_is_said() -> None:
    for text in ("scancel: error: Access/permission denied", "Unable to contact slurm controller (connect failure)"):
        with pytest.raises(CouldNotLookError, match="scancel"):
            SlurmCli(runner=Says(scancel=refused(text))).cancel(Job(id="7"))


def test_refusal_is_told_in_slurms_words() -> None:
    text = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    with pytest.raises(LaunchError, match="Invalid account"):
        SlurmCli(runner=Says(sbatch=refused(text))).submit("x", parts=[])


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
    ],
)
def test_submit_whose_answer_was_lost_is_neither_done_nor_refused(text: str) -> None:
    with pytest.raises(CouldNotLookError, match="sbatch"):
        SlurmCli(runner=Says(sbatch=refused(text))).submit("x", parts=[])


def test_silent_controller_is_never_an_empty_queue() -> None:
    """Field case C9."""
    client = SlurmCli(runner=Says(squeue=refused("slurm_load_jobs error: Socket timed out on send/recv operation")))
    with pytest.raises(CouldNotLookError, match="Socket timed out"):
        client.jobs()


def test_jobs_of_every_state_are_asked_for_in_one_call() -> None:
    """Field case C6."""
    runner = Says(squeue=said(""))
    assert list(SlurmCli(runner=runner).jobs()) == []
    (argv,) = runner.asked
    assert argv[0] == "squeue"
    assert {"--states=all", "--me"} < set(argv)


def test_accounting_that_is_switched_off_is_asked_once_and_the_controller_in_its_place() -> None:
    """Field case C15."""
    remembered = "JobId=7 JobName=ls-x-g1-a1 JobState=FAILED Reason=None Restarts=0 ExitCode=3:0 NodeList=n1"
    runner = Says(sacct=refused("Slurm accounting storage is disabled\n"), scontrol=said(remembered))
    client = SlurmCli(runner=runner)
    for _ in range(2):
        assert [(job.job_id, job.state.word, job.exit_code) for job in client.accounting(["7"])] == [("7", "FAILED", 3)]
    assert [argv[0] for argv in runner.asked] == ["sacct", "scontrol", "scontrol"]
    assert runner.asked[1] == ["scontrol", "--oneliner", "show", "job", "7"]


def test_job_that_the_controller_has_forgotten_is_told_from_a_controller_that_is_gone() -> None:
    disabled = refused("Slurm accounting storage is disabled\n")
    forgotten = refused("slurm_load_jobs error: Invalid job id specified")
    assert list(SlurmCli(runner=Says(sacct=disabled, scontrol=forgotten)).accounting(["7"])) == []
    broken = refused("slurm_load_jobs error: Access/permission denied")
    with pytest.raises(CouldNotLookError, match="permission"):
        SlurmCli(runner=Says(sacct=disabled, scontrol=broken)).accounting(["7"])


def test_accounting_that_is_broken_is_no_answer() -> None:
    client = SlurmCli(runner=Says(sacct=refused("sacct: error: Problem talking to the database: Connection timed out")))
    with pytest.raises(CouldNotLookError, match="database"):
        client.accounting(["7"])


_LINE = "JobId={id} UserId=root(0) Name=x JobState={state} Partition=low TimeLimit=1 NodeList=n1 ExitCode=1:0"


def test_completion_file_is_searched_for_exactly_these_jobs() -> None:
    lines = [
        _LINE.format(id=number, state=state) for number, state in ((7, "FAILED"), (77, "COMPLETED"), (8, "TIMEOUT"))
    ]
    runner = Says(tail=said("\n".join(lines)))
    found = SlurmCli(runner=runner, completion_file="/log/jobcomp.txt").completion(["7", "8"])
    assert [(job.job_id, job.state.word) for job in found] == [("7", "FAILED"), ("8", "TIMEOUT")]
    assert runner.asked[0][-1] == "/log/jobcomp.txt"
    assert list(SlurmCli(runner=Says()).completion(["7"])) == []


def test_cluster_without_switches_has_none() -> None:
    runner = Says(scontrol=refused("No topology information available"))
    assert SlurmCli(runner=runner).switches() == ""
    with pytest.raises(CouldNotLookError):
        SlurmCli(runner=Says(scontrol=refused("Unable to contact slurm controller"))).switches()


def test_jobs_that_are_not_ours_need_not_be_understood() -> None:
    ours = squeue(Name="ls-x-g1-a1")
    strangers = [squeue(JobID="8", Name="notebook", State="MELTED"), squeue(JobID="9", Name="n|x", NodeList="?")]
    client = SlurmCli(runner=Says(squeue=said("\n".join([strangers[0], ours, strangers[1]]))))
    assert [job.job_id for job in client.jobs()] == ["7"]
    with pytest.raises(ValueError, match="MELTED"):
        SlurmCli(runner=Says(squeue=said(squeue(Name="ls-x-g1-a1", State="MELTED")))).jobs()
