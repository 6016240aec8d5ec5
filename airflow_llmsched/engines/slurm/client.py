"""All that the engine asks of a cluster, and how it is asked through Slurm's own commands.

Every call has a limit: a controller that is gone lets a command hang for ten seconds and more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from airflow_llmsched.engines.agent_request import is_attempt_name
from airflow_llmsched.engines.slurm import records
from airflow_llmsched.engines.slurm.nodes import NodeRecord, from_scontrol_node
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.replies import Job, job_of_submit
from airflow_llmsched.engines.slurm.runner import Completed, Runner
from airflow_llmsched.errors import CouldNotLookError, LaunchError

CALL_LIMIT_S = 30.0

_NOT_REACHED = (
    "socket timed out",
    "unable to contact",
    "connection refused",
    "connection timed out",
    "zero bytes were transmitted",
    "temporarily unable",
    "unexpected message received",
    "protocol authentication error",
    "communication connection failure",
)
"""What Slurm's commands say (in any case) when they could not tell whether anything was done."""

_GONE = ("invalid job id", "already completing or completed", "job/step already")
_NO_ACCOUNTING = ("accounting storage is disabled", "slurm accounting storage is disabled")
_MAX_COMPLETION_LINES = 50_000


class SlurmClient(Protocol):
    """Asks one cluster, as one user. Every method raises ``CouldNotLookError`` when the answer did not come."""

    def submit(self, script: str, *, parts: Sequence[Mapping[str, str | None]]) -> Job:
        """Queue a batch script; ``parts`` are the options that are in it. Raises ``LaunchError`` when refused."""

    def jobs(self) -> Sequence[JobRecord]:
        """Return each of this user's jobs that are named as attempts and that the controller knows, in any state."""

    def accounting(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return what the accounting database knows of these; without one, what the controller alone still knows."""

    def completion(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return what the job completion file says of these; nothing where it is not to be seen."""

    def cancel(self, job: Job) -> None:
        """End a job. Silent when it has ended already."""

    def nodes(self) -> Sequence[NodeRecord]:
        """Return every node."""

    def switches(self) -> str:
        """Return what ``scontrol show topology`` says; empty where the cluster has none."""


class SlurmCli:
    """A ``SlurmClient`` through commands that ``runner`` runs. ``completion_file`` is JobCompLoc, where it is seen."""

    def __init__(self, *, runner: Runner, cluster: str | None = None, completion_file: str | None = None) -> None:
        self._runner = runner
        self._cluster = [] if cluster is None else [f"--clusters={cluster}"]
        self._completion_file = None if completion_file is None else PurePosixPath(completion_file)
        self._has_accounting = True

    def submit(self, script: str, *, parts: Sequence[Mapping[str, str | None]]) -> Job:
        """See ``SlurmClient``."""
        del parts  # they stand in the script's first lines
        done = self._call(["sbatch", "--parsable", *self._cluster], stdin=script)
        if done.exit_code == 0:
            return job_of_submit(done.stdout)
        raise LaunchError(f"Slurm refused the job: {_said(done)}")

    def jobs(self) -> Sequence[JobRecord]:
        """See ``SlurmClient``. A job of several parts is one record."""
        lines = _lines(self._text([*records.SQUEUE, "--me", *self._cluster]))
        ours = [line for line in lines if is_attempt_name(records.name_in_squeue(line))]
        return list(records.by_job(map(records.from_squeue, ours)).values())

    def accounting(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """See ``SlurmClient``. Where there is none, which is found out once, ``scontrol`` is asked of each job."""
        if not self._has_accounting:
            return self._remembered(job_ids)
        done = self._call([*records.SACCT, f"--jobs={','.join(job_ids)}", *self._cluster])
        if done.exit_code == 0:
            return list(records.by_job(records.from_sacct(line) for line in _lines(done.stdout)).values())
        if not any(word in done.stderr.lower() for word in _NO_ACCOUNTING):
            raise CouldNotLookError(f"sacct: {_said(done)}; look again")
        self._has_accounting = False
        return self._remembered(job_ids)

    def _remembered(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        found: list[JobRecord] = []
        for job_id in job_ids:
            done = self._call(["scontrol", *self._cluster, "--oneliner", "show", "job", job_id])
            if done.exit_code == 0:
                found += map(records.from_scontrol, _lines(done.stdout))
            elif not any(word in done.stderr.lower() for word in _GONE):
                raise CouldNotLookError(f"scontrol: {_said(done)}; look again")
        return list(records.by_job(found).values())

    def completion(self, job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """See ``SlurmClient``."""
        if self._completion_file is None:
            return []
        text = self._text(["tail", "-n", str(_MAX_COMPLETION_LINES), "--", str(self._completion_file)])
        wanted = {f"JobId={job_id}" for job_id in job_ids}
        lines = [line for line in _lines(text) if line.partition(" ")[0] in wanted]
        return list(records.by_job(map(records.from_completion, lines)).values())

    def cancel(self, job: Job) -> None:
        """See ``SlurmClient``."""
        cluster = self._cluster if job.cluster is None else [f"--clusters={job.cluster}"]
        done = self._call(["scancel", *cluster, job.id])
        if done.exit_code != 0 and not any(word in done.stderr.lower() for word in _GONE):
            raise CouldNotLookError(f"scancel {job.id}: {_said(done)}; retry")

    def nodes(self) -> Sequence[NodeRecord]:
        """See ``SlurmClient``."""
        text = self._text(["scontrol", *self._cluster, "--oneliner", "--details", "show", "node"])
        return [from_scontrol_node(line) for line in _lines(text) if line.startswith("NodeName=")]

    def switches(self) -> str:
        """See ``SlurmClient``."""
        done = self._call(["scontrol", *self._cluster, "--oneliner", "show", "topology"])
        return done.stdout if done.exit_code == 0 else ""

    def _text(self, argv: Sequence[str]) -> str:
        done = self._call(argv)
        if done.exit_code != 0:
            raise CouldNotLookError(f"{argv[0]}: {_said(done)}; look again")
        return done.stdout

    def _call(self, argv: Sequence[str], *, stdin: str = "") -> Completed:
        done = self._runner.run(argv, stdin=stdin, limit_s=CALL_LIMIT_S)
        if done.exit_code != 0 and any(word in done.stderr.lower() for word in _NOT_REACHED):
            raise CouldNotLookError(f"{argv[0]}: {_said(done)}; look again")
        return done


def _said(done: Completed) -> str:
    text = (done.stderr or done.stdout).strip()
    return text[-800:] or f"exit code {done.exit_code}"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
