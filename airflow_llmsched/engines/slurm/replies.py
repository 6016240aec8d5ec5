"""What sbatch answers: a job's number, in whatever words a site wraps it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORDS = re.compile(r"Submitted batch job ([0-9]{1,18})(?: on cluster ([A-Za-z0-9._\-]{1,128}))?")
_PARSABLE = re.compile(r"([0-9]{1,18})(?:;([A-Za-z0-9._\-]{1,128}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of Slurm's jobs, by its number and, where a site has several clusters, its cluster."""

    id: str
    cluster: str | None = None


def job_of_submit(text: str) -> Job:
    """Return the job that sbatch says it has submitted, among whatever else a site has it print.

    Raises ``ValueError`` when it names none, or several.
    """
    found: set[Job] = set()
    for line in text.splitlines():
        match = _PARSABLE.fullmatch(line.strip()) or _WORDS.search(line)
        if match:
            found.add(Job(id=match[1], cluster=match[2]))
    if len(found) != 1:
        what = "several jobs" if found else "no job"
        raise ValueError(f"sbatch named {what}: {text[:200]!r}")
    return found.pop()
