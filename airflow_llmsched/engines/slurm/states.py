"""What Slurm's words for a job mean: every state of its manuals in one table, and nothing guessed. Pure.

Sources: squeue(1) and sacct(1) of 22.05, "Job State Codes" of 24.11, whose flags slurmrestd shows as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One word of Slurm's. ``code`` is its short form, where it has one.

    ``phase`` is the gang's when nothing else is known; ``fault`` why it ended. ``requeued``: a job that a site lets
    Slurm requeue may come back from it, though it looks like an end.
    """

    word: str
    code: str | None
    phase: GangPhase
    says: str
    fault: FaultKind | None = None
    requeued: bool = False


def _row(word: str, code: str | None, phase: GangPhase, says: str, fault: FaultKind | None = None) -> JobState:
    requeued = word in ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED")
    return JobState(word=word, code=code, phase=phase, says=says, fault=fault, requeued=requeued)


_P, _R = GangPhase.PENDING, GangPhase.RUNNING

STATES: dict[str, JobState] = {
    state.word: state
    for state in (
        # Flags that say the job goes on, whatever state it carries beside them.
        _row("COMPLETING", "CG", _R, "is ending; processes of it may still be there"),
        _row("STAGE_OUT", "SO", _R, "is staging files out"),
        _row("REVOKED", "RV", _R, "runs on another cluster of the federation"),
        _row("REQUEUE_HOLD", "RH", _P, "was requeued and is held until somebody releases it"),
        _row("SPECIAL_EXIT", "SE", _P, "was requeued for a special exit and is held until somebody releases it"),
        _row("REQUEUE_FED", "RF", _P, "is being requeued by the federation"),
        _row("REQUEUED", "RQ", _P, "is being requeued"),
        # Flags that say a waiting or running job still waits for its nodes.
        _row("CONFIGURING", "CF", _P, "waits for its nodes to boot"),
        _row("POWER_UP_NODE", None, _P, "waits for its nodes to be powered up"),
        _row("RESV_DEL_HOLD", "RD", _P, "is held, as its reservation was deleted"),
        # States, of which a job has exactly one. Ends first: of an end there is no way back but the flags above.
        _row("COMPLETED", "CD", GangPhase.SUCCEEDED, "ended with exit code 0"),
        _row("CANCELLED", "CA", GangPhase.STOPPED, "was cancelled", FaultKind.STOPPED_OUTSIDE),
        _row("FAILED", "F", GangPhase.FAILED, "failed"),
        _row("OUT_OF_MEMORY", "OOM", GangPhase.FAILED, "ran out of memory", FaultKind.RANK_FAILED),
        _row("PREEMPTED", "PR", GangPhase.PREEMPTED, "was preempted", FaultKind.PREEMPTED),
        _row("TIMEOUT", "TO", GangPhase.PREEMPTED, "reached its time limit", FaultKind.PREEMPTED),
        _row("DEADLINE", "DL", GangPhase.PREEMPTED, "could not end by its deadline", FaultKind.PREEMPTED),
        _row("NODE_FAIL", "NF", GangPhase.LOST, "lost a node", FaultKind.NODE_LOST),
        _row("BOOT_FAIL", "BF", GangPhase.LOST, "had a node that did not boot", FaultKind.NODE_LOST),
        _row("PENDING", "PD", _P, "waits in the queue"),
        _row("SUSPENDED", "S", _R, "is suspended: its processors serve other jobs"),
        _row("RUNNING", "R", _R, "runs"),
        # Flags that change nothing about the state beside them; alone, they are all that squeue shows.
        _row("STOPPED", "ST", _R, "is stopped by SIGSTOP and keeps its processors"),
        _row("SIGNALING", "SI", _R, "is being sent a signal"),
        _row("RESIZING", "RS", _R, "is changing its size"),
        _row("UPDATE_DB", None, _R, "is being written to the accounting database"),
        _row("EXPEDITING", None, _P, "is requeued before all others"),
        _row("LAUNCH_FAILED", None, _P, "could not be launched on its nodes"),
        _row("RECONFIG_FAIL", None, _P, "had nodes that could not be configured"),
    )
}
"""Of several words that a job carries at once, the one that stands first here decides."""

_BY_CODE = {state.code: state for state in STATES.values() if state.code is not None}
_WEIGHT = {word: index for index, word in enumerate(STATES)}

HOPELESS = {
    "BadConstraints": "no node can ever meet what it asks for",
    "DependencyNeverSatisfied": "the job it waits for will never end as it should",
    "InvalidAccount": "its account is invalid",
    "InvalidQOS": "its QOS is invalid",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives one job, or for nodes that are down",
    "PartitionTimeLimit": "its time limit is longer than its partition's",
    "launch failed requeued held": "its launch failed, and Slurm holds it until somebody releases it",
}
"""Reasons of a waiting job that waiting does not cure."""


def state_of(text: str) -> JobState:
    """Return the state that a word of Slurm's names: long or short, cut off by a narrow column, with or without a uid.

    Raises ``ValueError`` for an unknown one, and for one cut so short that it could be several.
    """
    word = text.strip().partition(" ")[0].upper()  # "CANCELLED by 1001"
    known = STATES.get(word) or _BY_CODE.get(word)
    if known is not None:
        return known
    if word.endswith("+") and len(word) > 1:
        matches = [state for name, state in STATES.items() if name.startswith(word[:-1])]
        if len(matches) == 1:
            return matches[0]
    raise ValueError(
        f"Slurm says that a job is {text.strip()[:60]!r}, which is no state of its manuals: is it a newer version? "
        "Nothing is concluded from it"
    )


def deciding(words: Iterable[str]) -> JobState:
    """Return the state that decides of those a job carries at once (its state and its flags).

    Raises ``ValueError`` when one is unknown, or there is none.
    """
    states = [state_of(word) for word in words]
    if not states:
        raise ValueError("Slurm lists a job without a state: nothing is concluded from it")
    return min(states, key=lambda state: _WEIGHT[state.word])


def hopeless(reason: str) -> str | None:
    """Return why a job that waits for ``reason`` will never start by itself, None when it may."""
    bare = reason.strip().strip("()").replace("_", " ")
    return HOPELESS.get(bare.replace(" ", "")) or HOPELESS.get(bare)
