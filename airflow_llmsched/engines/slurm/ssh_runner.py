"""Runs the cluster's commands on a machine of its own, usually a login node, over SSH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_llmsched.engines import ssh
from airflow_llmsched.engines.slurm.runner import Completed
from airflow_llmsched.errors import CouldNotLookError

_MAX_OUTPUT_BYTES = 128 * 1024 * 1024
_NOT_STARTED = (126, 127)
_KILLED = range(129, 193)
"""A shell adds 128 to the number of the signal that ended its command."""

_SBATCH = (
    "ACCOUNT ACCTG_FREQ ARRAY_INX BATCH CLUSTERS CONSTRAINT CONTAINER CORE_SPEC CPUS_PER_GPU DEBUG DELAY_BOOT "
    "DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_TASK GPU_BIND GPU_FREQ GRES "
    "GRES_FLAGS HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL "
    "NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS REQUEUE REQ_SWITCH RESERVATION SEGMENT_SIZE "
    "SIGNAL SPREAD_JOB THREADS_PER_CORE THREAD_SPEC TIMELIMIT USE_MIN_NODES WAIT WAIT_ALL_NODES WAIT_FOR_SWITCH WCKEY"
)
_SQUEUE = "ACCOUNT ALL ARRAY FEDERATION LICENSES LOCAL NAMES PARTITION PRIORITY QOS SIBLING SORT STATES USERS"
_SETTINGS = (
    *(f"SBATCH_{name}" for name in _SBATCH.split()),
    *(f"SQUEUE_{name}" for name in _SQUEUE.split()),
    "SLURM_CLUSTERS",
)
"""What a login may have set that would change what we ask for: sbatch heeds these before a script's own lines."""


class SshRunner:
    """A ``Runner`` on ``machine``; ``environment`` adds to what the login gives its commands."""

    def __init__(
        self, *, machine: ssh.Machine, access: ssh.Access, environment: Mapping[str, str] | None = None
    ) -> None:
        self._machine = machine
        self._access = access
        self._prefix = (
            "env",
            *(part for name in _SETTINGS for part in ("-u", name)),
            *(f"{name}={value}" for name, value in (environment or {}).items()),
        )

    def run(self, argv: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        """Return how it ended. A command whose connection broke is run again: each must be one that may run twice."""
        command = ssh.Command(
            argv=(*self._prefix, *argv), reads=stdin.encode(), limit_s=limit_s, max_output_bytes=_MAX_OUTPUT_BYTES
        )
        outcome = ssh.run({self._machine: command}, self._access)[self._machine]
        if isinstance(outcome, ssh.Unanswered):
            raise CouldNotLookError(f"{argv[0]}: {outcome.reason}; look again")
        if outcome.code is None or outcome.code in _KILLED:
            raise CouldNotLookError(
                f"{argv[0]} on {self._machine.name} was killed: {outcome.errors[-300:]}; look again"
            )
        if outcome.code in _NOT_STARTED:
            raise CouldNotLookError(
                f"{argv[0]} did not run on {self._machine.name}: is Slurm's client there, and in the PATH of a login "
                f"without a terminal? {outcome.errors[-300:]}"
            )
        return Completed(exit_code=outcome.code, stdout=outcome.output.decode(errors="replace"), stderr=outcome.errors)
