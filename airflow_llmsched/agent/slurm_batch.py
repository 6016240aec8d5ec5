"""What a Slurm job runs: claims the attempt, starts one node supervisor per node through srun, and stays to the end.

``python -P -m airflow_llmsched.agent.slurm_batch`` is the batch script's only command: it reads what to run from
standard input (base64 of JSON), so no file but the attempt's own directory is needed. srun starts it once more on each
node with ``--task GANG_DIR``, and there it becomes the node's supervisor.

An attempt has one job. Whoever comes second under its name, and whoever comes after it was stopped, ends at once.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.launch import whose
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.shelf import ENVIRONMENT
from airflow_llmsched.agent.spool import create_json, read_json, write_json
from airflow_llmsched.agent.watch import DONE

NOT_OURS = 73
"""The job is not the one that may start the attempt (EX_CANTCREAT of sysexits.h)."""
LOST = 70
"""The gang ended, and no rank's exit code says why (EX_SOFTWARE)."""

_KEPT = ("submit.json", ENVIRONMENT, "job.json", "stop.json", "end.json", "lives")
"""What of an attempt's directory belongs to it, and not to one life of its job."""

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_TICK_S = 0.1
_KILLED_LIMIT_S = 60.0
"""How long after its deadline the platform may take to kill a job whose node it announced to take."""
_SCONTROL_LIMIT_S = 30.0
_OF_THE_STEP = re.compile(r"SLURM_(PROCID|LOCALID|NTASKS.*|NPROCS|TASKS_PER_NODE|GTIDS|TASK_PID|STEP.*)|PMI.*")
"""What srun says of its one task per node: each rank would take it for its own."""

_GRACE = re.compile(r"(?:^|\s)GraceTime=([0-9]+)")
_ADDRESS = re.compile(r"(?:^|\s)NodeName=(\S+).*?\sNodeAddr=(\S+)")


class Batch:
    """One job of one attempt. ``environ`` is what Slurm says to it."""

    def __init__(self, told: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._told = told
        self._environ = environ
        self._body: dict[str, Any] = dict(told["body"])
        self._gang = GangDir(Path(told["gang_dir"]))
        self._job_id = environ["SLURM_JOB_ID"]
        self._restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._has_gone = False
        self._awaited: list[str] = []
        self._due_grace_s: float | None = None

    def run(self) -> int:
        """Return the job's exit code: 0 when every rank exited 0, else the first failed rank's."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        refusal = self._claim()
        if refusal is not None:
            say(f"llmsched: job {self._job_id} starts nothing: {refusal}")
            return NOT_OURS
        self._prepare()
        step = self._start_step()
        while step.poll() is None:
            try:
                self._wait()
                self._let_go()
            except OSError as error:  # of the shared disk; the ranks and their supervisors may well be well
                say(f"llmsched: job {self._job_id}: {error}; trying again")
        return self._stay_if_taken(self._exit_code(step.returncode))

    def _claim(self) -> str | None:
        """Make this job the attempt's only one; return why it must not be.

        Whoever stops the attempt writes that down before it looks for a job, and we have claimed before we look for a
        stop: so either it cancels us, or we start nothing.
        """
        gang = self._gang
        if not gang.submit.exists():
            return f"{gang.path} is no submitted attempt's directory"
        job = {"v": wire.VERSION, "job_id": self._job_id, "restart": self._restart, "at_s": time.time()}
        if not create_json(gang.job, job):
            held = read_json(gang.job) or {}
            if held["job_id"] != self._job_id:
                return f"the attempt is job {held['job_id']}'s"
            if not self._told["requeue"]:
                return "it was requeued, and whether the gang starts again is decided elsewhere"
            self._put_away(held["restart"])
            write_json(gang.job, job)
        return "the attempt was stopped" if gang.stop.exists() else None

    def _put_away(self, restart: int) -> None:
        """Keep what the job wrote before Slurm started it again, out of the way."""
        life = self._gang.path / "lives" / str(restart)
        life.mkdir(parents=True, exist_ok=True)
        for path in self._gang.path.iterdir():
            if path.name not in _KEPT:
                path.rename(life / path.name)

    def _prepare(self) -> None:
        """Write what the supervisors need, and let this life's clock begin."""
        parts = self._body["nodes"]
        if self._told["chooses_nodes"]:
            names = self._allocated()
            parts = [{**part, "node": name} for part, name in zip(parts, names, strict=True)]
        addresses = self._addresses([part["node"] for part in parts])
        self._body.setdefault("environment", self._environment())
        self._body["nodes"] = [{**part, "address": addresses[part["node"]]} for part in parts]
        for part in parts:
            self._gang.node(part["node"]).make()
        self._awaited = [part["node"] for part in parts]
        request = {
            "v": wire.VERSION,
            "submitted_at_s": time.time(),
            "restart": self._restart,
            "preemption_grace_s": self._preemption_grace_s(),
            "body": self._body,
        }
        write_json(self._gang.request, request)

    def _environment(self) -> dict[str, str]:
        """Return what ranks are to find in theirs; nothing where a script of before says it itself."""
        path = self._gang.path / ENVIRONMENT
        handed = read_json(path)
        if handed is None and "environment" not in self._body:
            raise FileNotFoundError(f"{path} is missing: ranks would start without it")
        return dict((handed or {}).get("environment", {}))

    def _allocated(self) -> list[str]:
        """Return the job's nodes in Slurm's order, those of a heterogeneous job part by part."""
        num_parts = int(self._environ.get("SLURM_HET_SIZE") or 0)
        names = [f"SLURM_JOB_NODELIST_HET_GROUP_{part}" for part in range(num_parts)] or ["SLURM_JOB_NODELIST"]
        return [node for name in names for node in self._scontrol("show", "hostnames", self._environ[name]).split()]

    def _addresses(self, nodes: list[str]) -> dict[str, str]:
        """Return what the nodes reach one another by: as Slurm does, else by their names."""
        found = dict(_ADDRESS.findall(self._scontrol("--oneliner", "show", "node", ",".join(nodes))))
        return {node: found.get(node, node) for node in nodes}

    def _preemption_grace_s(self) -> float:
        """Return how long the partition leaves a job after the first signal; else what the engine was told."""
        said = self._scontrol("--oneliner", "show", "partition", self._environ["SLURM_JOB_PARTITION"])
        found = _GRACE.search(said)
        return float(found[1]) if found and int(found[1]) > 0 else float(self._told["notice_s"])

    def _scontrol(self, *arguments: str) -> str:
        argv = ["scontrol", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SCONTROL_LIMIT_S, check=True)
        return done.stdout

    def _start_step(self) -> subprocess.Popen[bytes]:
        step = self._told["step"]
        own = ["-P", "-m", "airflow_llmsched.agent.slurm_batch", "--task", str(self._gang.path)]
        return subprocess.Popen(
            [*step["srun"], *step["python"], *own],
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_unblock,  # noqa: PLW1509  (one thread, and srun must see the signals that we wait for)
        )

    def _wait(self) -> None:
        got = proc.next_signal(_SIGNALS, timeout_s=_TICK_S)
        if got in (signal.SIGTERM, signal.SIGUSR1):
            self._due_grace_s = float(self._told["notice_s"]) if got == signal.SIGUSR1 else 0.0
        if self._due_grace_s is not None:
            self._note(grace_s=self._due_grace_s)
            self._due_grace_s = None

    def _note(self, *, grace_s: float) -> None:
        """Hand the platform's word to the agents, unless they have had one: the first deadline holds.

        Who stops the gang has its job cancelled once the agents have had their time: that is no notice.
        """
        if self._gang.stop.exists():
            return
        now_s = time.time()
        notice = {"v": wire.VERSION, "at_s": now_s, "deadline_s": now_s + grace_s}
        for part in self._body["nodes"]:
            create_json(self._gang.node(part["node"]).notice, notice)

    def _let_go(self) -> None:
        """Let all ranks start once every node has its supervisor."""
        while self._awaited and self._gang.node(self._awaited[-1]).is_claimed():
            self._awaited.pop()
        if self._has_gone or self._awaited:
            return
        create_json(self._gang.go, {"v": wire.VERSION, "at_s": time.time()})
        self._has_gone = True

    def _exit_code(self, step_code: int) -> int:
        records = [read_json(self._gang.node(part["node"]).exit) for part in self._body["nodes"]]
        if all(record is not None and record["outcome"] == DONE for record in records):
            return 0
        first = self._first_failure([record for record in records if record is not None])
        if first is not None:
            return int(first["exit_code"] or 128 + (first["signal"] or 0))
        return step_code if 0 < step_code < 128 else LOST

    def _first_failure(self, records: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return how the rank ended for which the gang was given up, as the supervisor saw it that serves the others.

        Where that names none, the earliest by one clock: each record says how far its node's is ahead.
        """
        failed = [
            {**end, "at_s": end["at_s"] - record.get("ahead_s", 0.0)}
            for record in records
            for end in record["ends"]
            if end["exit_code"] != 0 and not end["forced"]
        ]
        abort = read_json(self._gang.abort) or {}
        told = [end for end in failed if end["rank"] == abort.get("rank")]
        return min(told or failed, key=lambda end: (end["at_s"], end["rank"]), default=None)

    def _stay_if_taken(self, code: int) -> int:
        """Stay until killed when the platform takes the nodes: a job that exits now would count as completed."""
        nodes = [part["node"] for part in self._body["nodes"]]
        notices = self._gang.notices(nodes)
        if code == 0 or not notices or self._gang.stop.exists():
            return code
        until_s = max(notices.values()) + _KILLED_LIMIT_S
        while time.time() < until_s and not self._gang.stop.exists():
            proc.next_signal(_SIGNALS, timeout_s=1.0)
        return code


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _task(gang: GangDir) -> NoReturn:
    """Become the supervisor of the node that this runs on, with the marks by which its processes are known."""
    node = os.environ["SLURMD_NODENAME"]
    request = read_json(gang.request)
    if request is None:
        raise FileNotFoundError(f"{gang.request} is missing: {gang.path} is no attempt's directory")
    log = os.open(gang.node(node).supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    body = request["body"]
    kept = {name: value for name, value in os.environ.items() if not _OF_THE_STEP.fullmatch(name)}
    environ = {**kept, **whose(body), **gang.marks(body["attempt_name"], node)}
    grace_s = float(request["preemption_grace_s"])
    argv = [sys.executable, "-P", "-m", "airflow_llmsched.agent.supervisor", "--foreground"]
    argv += [f"--notice-grace-s={grace_s:g}", str(gang.path), node]
    os.execve(argv[0], argv, environ)  # noqa: S606  (arguments, and no shell)


def main(argv: list[str]) -> int:
    """Run the batch part, or with ``--task GANG_DIR`` one node's."""
    if argv[:1] == ["--task"] and len(argv) == 2:
        _task(GangDir(Path(argv[1])))
    if argv:
        say("usage: python -m airflow_llmsched.agent.slurm_batch [--task GANG_DIR] < what-to-run")
        return 2
    return Batch(json.loads(base64.b64decode(sys.stdin.buffer.read())), os.environ).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
