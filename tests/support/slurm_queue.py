"""A ``SlurmClient`` that is a list, for what an engine decides. What Slurm does itself is tried on a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_llmsched.engines.slurm.nodes import NodeRecord
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.replies import Job
from airflow_llmsched.engines.slurm.states import state_of


class ListedSlurm:
    """Jobs wait until the test says otherwise; every node has 2 GPUs, which none of them takes by itself."""

    def __init__(self, *nodes: str) -> None:
        self.listed: list[JobRecord] = []
        self.scripts: list[str] = []
        self.cancelled: list[str] = []
        self.answer: Exception | None = None
        self.records = [
            NodeRecord(name=name, address=name, states=("IDLE",), gres="gpu:2", used="gpu:0(IDX:N/A)") for name in nodes
        ]

    def submit(self, script: str, *, parts: Sequence[Mapping[str, str | None]]) -> Job:
        if self.answer is not None:
            raise self.answer
        self.scripts.append(script)
        job_id = str(len(self.listed) + 1)
        said = parts[0]
        name, comment = said["job-name"] or "", said["comment"] or ""
        self.listed.append(JobRecord(job_id=job_id, name=name, state=state_of("PENDING"), comment=comment))
        return Job(id=job_id)

    def jobs(self) -> list[JobRecord]:
        return list(self.listed)

    def accounting(self, job_ids: Sequence[str]) -> list[JobRecord]:
        return []

    def completion(self, job_ids: Sequence[str]) -> list[JobRecord]:
        return []

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job.id)
        self.turn(job.id, "CANCELLED")

    def nodes(self) -> list[NodeRecord]:
        return list(self.records)

    def switches(self) -> str:
        return ""

    def turn(self, job_id: str, word: str, **changes: object) -> None:
        """Have a job be in another state."""
        self.listed = [
            replace(job, state=state_of(word), **changes) if job.job_id == job_id else job  # type: ignore[arg-type]
            for job in self.listed
        ]
