"""What each of Slurm's sources says of a job, as one value: what to ask of each, and how its answer reads. Pure.

Clients are run with ``ENVIRONMENT``, so that every time is in Unix seconds; the job completion file alone has local
times, which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.engines.slurm.states import JobState, deciding, state_of
from airflow_llmsched.topology.nodelist import expand

ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}

_WIDTHS = {
    "JobID": 20,
    "HetJobID": 20,
    "HetJobOffset": 8,
    "State": 30,
    "exit_code": 12,
    "RestartCnt": 8,
    "SubmitTime": 14,
    "StartTime": 14,
    "EndTime": 14,
    "NodeList": 2000,
    "Reason": 200,
    "Name": 200,
    "Comment": 1100,
}
SQUEUE = (
    "squeue",
    "--noheader",
    "--states=all",
    f"--Format={','.join(f'{name}:{width}|' for name, width in _WIDTHS.items())}",
)
"""Add ``--jobs=1,2`` or ``--name=a,b``: one call for many. Jobs that ended lately are listed as well."""

_SACCT_FIELDS = (
    "JobID",
    "State",
    "ExitCode",
    "Submit",
    "Start",
    "End",
    "NodeList",
    "Reason",
    "JobName",
    "Comment",
)
SACCT = ("sacct", "--noheader", "--parsable2", "--allocations", f"--format={','.join(_SACCT_FIELDS)}")
"""Add ``--jobs=1,2`` or ``--name=a,b``."""

_UNKNOWN_TIMES = frozenset(("", "0", "NONE", "N/A", "Unknown", "None", "(null)"))
_CANCELLER = re.compile(r"CANCELLED by ([0-9]+)")
_PAIR = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_/:.]*)=(.*?)(?=\s+[A-Za-z][A-Za-z0-9_/:.]*=|\s*$)")
_JOB_ID = re.compile(r"([0-9]{1,18})(?:\+([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, or one ``part`` of a heterogeneous one, as one source knows it.

    ``exit_code`` and ``signal`` are of its batch script, which runs in part 0; ``cancelled_by`` is a uid, where the
    source names one; ``nodes`` are only the first ones where squeue's column is too narrow for all. Times are in Unix
    seconds, None where it does not say.
    """

    job_id: str
    name: str
    state: JobState
    part: int = 0
    exit_code: int | None = None
    signal: int | None = None
    cancelled_by: str | None = None
    reason: str = ""
    num_restarts: int = 0
    nodes: tuple[str, ...] = ()
    submitted_at_s: float | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    comment: str = ""


def from_squeue(line: str) -> JobRecord:
    """Return what one line of ``SQUEUE`` says. Raises ``ValueError`` for what is no such line."""
    said = _fields(line)
    exit_code, signal = _of_wait_status(int(said["exit_code"] or 0))
    return JobRecord(
        **_which(_word(said["HetJobID"]) or said["JobID"], _word(said["HetJobOffset"])),
        name=said["Name"],
        state=state_of(said["State"]),
        exit_code=exit_code,
        signal=signal,
        reason=_word(said["Reason"]),
        num_restarts=int(said["RestartCnt"] or 0),
        nodes=expand(_uncut(said["NodeList"])),
        submitted_at_s=_time_s(said["SubmitTime"]),
        started_at_s=_time_s(said["StartTime"]),
        ended_at_s=_time_s(said["EndTime"]),
        comment=_word(said["Comment"].rstrip("|").rstrip()),
    )


def name_in_squeue(line: str) -> str:
    """Return the job's name in one line of ``SQUEUE``. Raises ``ValueError`` for what is no such line.

    Of a job that is not ours nothing else need be understood.
    """
    return _fields(line)["Name"]


def _fields(line: str) -> dict[str, str]:
    # Names and comments come last: they alone may have the separator in them.
    fields = [field.strip() for field in line.split("|", len(_WIDTHS) - 1)]
    if len(fields) != len(_WIDTHS):
        raise ValueError(f"squeue printed a line that was not asked for: {line[:200]!r}")
    return dict(zip(_WIDTHS, fields, strict=True))


def from_sacct(line: str) -> JobRecord:
    """Return what one line of ``SACCT`` says. Raises ``ValueError`` for what is no such line."""
    fields = line.rstrip("\n").split("|", len(_SACCT_FIELDS) - 1)
    if len(fields) != len(_SACCT_FIELDS):
        raise ValueError(f"sacct printed a line that was not asked for: {line[:200]!r}")
    said = dict(zip(_SACCT_FIELDS, fields, strict=True))
    canceller = _CANCELLER.search(said["State"])
    exit_code, signal = _of_pair(said["ExitCode"])
    return JobRecord(
        **_which(said["JobID"]),
        name=said["JobName"],
        state=state_of(said["State"]),
        exit_code=exit_code,
        signal=signal,
        cancelled_by=canceller[1] if canceller else None,
        reason=_word(said["Reason"]),
        nodes=expand(said["NodeList"]),
        submitted_at_s=_time_s(said["Submit"]),
        started_at_s=_time_s(said["Start"]),
        ended_at_s=_time_s(said["End"]),
        comment=_word(said["Comment"]),
    )


def from_scontrol(line: str) -> JobRecord:
    """Return what one line of ``scontrol --oneliner show job`` says. Raises ``ValueError`` for what is no such line."""
    said = pairs(line)
    exit_code, signal = _of_pair(said.get("ExitCode", "0:0"))
    return JobRecord(
        **_which(said.get("HetJobId") or said.get("JobId", line), said.get("HetJobOffset")),
        name=said.get("JobName", ""),
        state=deciding(said.get("JobState", "").split(",")),
        exit_code=exit_code,
        signal=signal,
        reason=_word(said.get("Reason", "")),
        num_restarts=int(said.get("Restarts", "0")),
        nodes=expand(said.get("NodeList", "")),
        submitted_at_s=_time_s(said.get("SubmitTime", "")),
        started_at_s=_time_s(said.get("StartTime", "")),
        ended_at_s=_time_s(said.get("EndTime", "")),
        comment=_word(said.get("Comment", "")),
    )


def from_completion(line: str) -> JobRecord:
    """Return what one line of the job completion file (jobcomp/filetxt) says. Raises ``ValueError``."""
    said = pairs(line)
    exit_code, signal = _of_pair(said.get("ExitCode", "0:0"))
    return JobRecord(
        **_which(said.get("JobId", line)),
        name=said.get("Name", ""),
        state=state_of(said.get("JobState", "")),
        exit_code=exit_code,
        signal=signal,
        nodes=expand(said.get("NodeList", "")),
    )


def from_rest(job: Mapping[str, Any]) -> JobRecord:
    """Return what slurmrestd says of a job, in any of the forms of its versions.

    Up to 0.0.39 a state is a word and a number a number; later a state is a list of words, and a number may be an
    object that says whether it is set. Raises ``ValueError``.
    """
    words = job["job_state"]
    exit_code, signal = _of_rest_code(job.get("exit_code"))
    return JobRecord(
        **_which(
            str(number_of(job.get("het_job_id")) or number_of(job["job_id"])),
            str(number_of(job.get("het_job_offset")) or 0),
        ),
        name=str(job.get("name") or ""),
        state=deciding([words] if isinstance(words, str) else words),
        exit_code=exit_code,
        signal=signal,
        reason=_word(str(job.get("state_reason") or "")),
        num_restarts=number_of(job.get("restart_cnt")) or 0,
        nodes=expand(str(job.get("nodes") or "")),
        submitted_at_s=_time_s(str(number_of(job.get("submit_time")) or "")),
        started_at_s=_time_s(str(number_of(job.get("start_time")) or "")),
        ended_at_s=_time_s(str(number_of(job.get("end_time")) or "")),
        comment=_rest_comment(job.get("comment")),
    )


def by_job(records: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """Return one record of each job, its parts joined.

    Of several about one part the last counts: accounting and the completion file have one for each requeue.
    """
    parts: dict[str, dict[int, JobRecord]] = {}
    for record in records:
        parts.setdefault(record.job_id, {})[record.part] = record
    return {job: _joined([of[part] for part in sorted(of)]) for job, of in parts.items()}


def pairs(line: str) -> dict[str, str]:
    """Return the ``key=value`` pairs of a line; of a key that a value imitates, the first counts."""
    found: dict[str, str] = {}
    for match in _PAIR.finditer(line.strip()):
        found.setdefault(match[1], match[2].strip())
    return found


def number_of(value: object) -> int | None:
    """Return a number that may be told as ``{"set": true, "infinite": false, "number": 5}``, None when unset."""
    if isinstance(value, Mapping):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return None if value is None else int(str(value))


def _joined(parts: Sequence[JobRecord]) -> JobRecord:
    """The first part's batch script starts and ends it all; but why it failed may be that another part lost a node."""
    first = parts[0]
    if len(parts) == 1:
        return first
    state = first.state
    if state.phase.ended and state.phase is not GangPhase.SUCCEEDED:
        taken = [part.state for part in parts if part.state.phase in (GangPhase.LOST, GangPhase.PREEMPTED)]
        state = taken[0] if taken else state
    return replace(first, state=state, nodes=tuple(node for part in parts for node in part.nodes))


class _Which(TypedDict):
    job_id: str
    part: int


def _which(text: str, part: str | None = None) -> _Which:
    """Return a job's number, and which part of a heterogeneous job is meant: ``12+1`` is the second part of 12."""
    found = _JOB_ID.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Slurm named a job by {text.strip()[:80]!r}, which is no number")
    return {"job_id": found[1], "part": int(part or found[2] or 0)}


def _uncut(text: str) -> str:
    """Return a node list without what its column has cut in two at the end."""
    if len(text) < _WIDTHS["NodeList"]:
        return text
    whole = [match.start() for match in re.finditer(r",(?![^\[]*\])", text)]
    whole = [at for at in whole if text.count("[", 0, at) == text.count("]", 0, at)]
    return text[: whole[-1]] if whole else ""


def _word(text: str) -> str:
    return "" if text in ("None", "(null)", "N/A", "Unknown") else text


def _time_s(text: str) -> float | None:
    return None if text in _UNKNOWN_TIMES else float(text)


def _of_wait_status(status: int) -> tuple[int, int | None]:
    """Return exit code and signal of a number as wait(2) gives it."""
    return status >> 8 & 0xFF, status & 0x7F or None


def _of_pair(text: str) -> tuple[int, int | None]:
    """Return exit code and signal of Slurm's ``code:signal``."""
    code, _, signal = text.partition(":")
    return int(code or 0), int(signal or 0) or None


def _of_rest_code(value: object) -> tuple[int | None, int | None]:
    if not isinstance(value, Mapping):
        return (None, None) if value is None else _of_wait_status(int(str(value)))
    signal = value.get("signal")
    number = signal.get("id") if isinstance(signal, Mapping) else value.get("signal_id")
    return number_of(value.get("return_code")) or 0, number_of(number) or None


def _rest_comment(value: object) -> str:
    """Newer versions keep three comments apart: the job's own is what we wrote."""
    return str((value.get("job") if isinstance(value, Mapping) else value) or "")
