"""A real Slurm on this machine: munge, a controller and twelve slurmd with fake GPUs, on ports of its own.

``python -m tests.support.slurm_cluster up FOLDER`` leaves one running for people (``make slurm-up``), ``down`` ends it.

Nodes n1 to n8 have 8 GPUs each, s1 to s4 have 2. Each kind has a partition whose jobs are preempted (``low``,
``small``) and one whose jobs preempt them (``high``, ``small-high``). Switches: leaf1 n1-n4, leaf2 n5-n8, leaf3 s1-s4,
all under spine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_llmsched.agent import proc
from airflow_llmsched.engines.slurm import gres
from tests.support.waiting import wait_until

_CONF = """\
ClusterName=emu
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/munge.sock
CredType=cred/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={root}/etc/jwt.key
StateSaveLocation={root}/state
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmdLogFile={root}/log/slurmd.%n.log
SlurmdSpoolDir={root}/spool/%n
SlurmdParameters=config_overrides
MessageTimeout=10
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={completion_file}
SwitchType=switch/none
TopologyPlugin=topology/tree
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=0,requeue_setup_env_fail,preempt_youngest_first
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=1000
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=2
MinJobAge=3600
InactiveLimit=0
Waittime=0
GresTypes=gpu
{nodes}
PartitionName=low  Nodes=n[1-8] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=n[1-8] MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
PartitionName=small Nodes=s[1-4] MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=small-high Nodes=s[1-4] MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
"""
_NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=64 Boards=1 SocketsPerBoard=2 "
    "CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:{kind}:{num_gpus} State=UNKNOWN"
)
_GRES = """\
NodeName=n[1-8] Name=gpu Type=h100 File={root}/dev/nvidia[0-7]
NodeName=s[1-4] Name=gpu Type=a100 File={root}/dev/nvidia[0-1]
"""
_TOPOLOGY = """\
SwitchName=leaf1 Nodes=n[1-4]
SwitchName=leaf2 Nodes=n[5-8]
SwitchName=leaf3 Nodes=s[1-4]
SwitchName=spine Switches=leaf[1-3]
"""
_LARGE = tuple(f"n{index}" for index in range(1, 9))
_SMALL = tuple(f"s{index}" for index in range(1, 5))
NODES = (*_LARGE, *_SMALL)

_FOLDERS = ("etc", "spool", "state", "log", "run", "dev", "munge", "shared")
_NULL_DEVICE = os.makedev(1, 3)  # GRES files must be character devices; this one does no harm
_UP_LIMIT_S = 60.0
_CALL_LIMIT_S = 30.0


class SlurmCluster:
    """One cluster below ``root``. ``shared`` stands for the file system that all its nodes see."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "etc" / "slurm.conf"
        self.shared = root / "shared"
        self.completion_file = root / "log" / "jobcomp.txt"
        self._log = root / "log" / "daemons.log"
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment for Slurm's commands to find this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        """Start all daemons, and return once every node is idle. They outlive this process."""
        with _ports_to_ourselves():
            self._write_files()
            self._start()

    def _start(self) -> None:
        munge = self.root / "munge"
        files = [f"--{name}={munge}/munge.{name.partition('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
        own = [f"--key-file={munge}/munge.key", f"--socket={munge}/munge.sock"]
        self._spawn(["munged", "--foreground", "--force", *own, *files])
        wait_until((munge / "munge.sock").exists, _UP_LIMIT_S)
        self.start_controller("-c")
        for node in NODES:
            self.start_node(node)
        self._await_all_free()

    def start_controller(self, *options: str) -> None:
        """Start the controller, with what it knew before unless told to clear it (``-c``); return once it answers."""
        self._spawn(["slurmctld", "-D", "-f", str(self.conf), *options])
        wait_until(self._controller_answers, _UP_LIMIT_S, poll_s=0.1)

    def stop_controller(self) -> None:
        """Have the controller end, which keeps what it knows for the next."""
        found = [each for each in self._processes() if _argv(each)[:1] == ["slurmctld"]]
        assert found
        assert not proc.end_all(lambda: found, grace_s=30.0)

    def start_node(self, node: str) -> None:
        """Start the daemon of one node."""
        self._spawn(["slurmd", "-D", "-f", str(self.conf), "-N", node])

    def bring_back(self, node: str) -> None:
        """Have a node that was made unusable take jobs again; return once it does.

        It comes back by itself as soon as its daemon reports, and nobody is told to do it twice.
        """
        with contextlib.suppress(AssertionError):
            self.call("scontrol", "update", f"nodename={node}", "state=resume")
        wait_until(lambda: self._state_of(node) in ("idle", "comp", "mix", "alloc"), _UP_LIMIT_S, poll_s=0.1)

    def call(self, *argv: str, stdin: str | None = None) -> str:
        """Run one of Slurm's commands. Raises ``AssertionError`` with what it said when it fails."""
        done = subprocess.run(
            argv,
            env={**os.environ, **self.environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_CALL_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
        return done.stdout

    @contextlib.contextmanager
    def rest(self) -> Iterator[str]:
        """Run slurmrestd for the length of the block, and yield its address. ``token`` lets in."""
        argv = ["slurmrestd", "-f", str(self.conf), "-u", "nobody", "-g", "nogroup", "-a", "rest_auth/jwt"]
        with contextlib.ExitStack() as stack:
            with _ports_to_ourselves():
                (port,) = _free_ports(1)
                daemon = self._spawn([*argv, "-s", "openapi/v0.0.38", f"127.0.0.1:{port}"], SLURM_JWT="daemon")
                stack.callback(lambda: daemon.wait(timeout=30))
                stack.callback(daemon.terminate)
                wait_until(lambda: _answers(port) or daemon.poll() is not None, _UP_LIMIT_S)
            assert daemon.poll() is None, self._log.read_text()[-2000:]
            yield f"http://127.0.0.1:{port}"

    def token(self, *, lifespan_s: int = 3600) -> str:
        """Return a token for the user that runs the tests."""
        return self.call("scontrol", "token", f"lifespan={lifespan_s}").strip().removeprefix("SLURM_JWT=")

    def cancel_all(self) -> None:
        """End every job, and return once none is left; of the nodes, see ``clear``."""
        with contextlib.suppress(AssertionError):  # jobs that end meanwhile make it complain
            self.call("scancel", "--user=root", "--signal=KILL")
            self.call("scancel", "--user=root")
        wait_until(lambda: not self.call("squeue", "--noheader").strip(), 60.0, poll_s=0.1)

    def clear(self) -> None:
        """End every job, and return once all that there is can be had: the next test counts on it.

        An empty queue does not say so. Until a node has reported to a controller that was restarted, it gets no job, or
        what its last job had counts as in use.
        """
        self.cancel_all()
        self._await_all_free()

    def stop(self) -> None:
        """End every job and every daemon, and whatever of jobs is left, by pid."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
        left = proc.end_all(self._processes, grace_s=5.0)
        assert not left, left
        for daemon in self._daemons:
            daemon.wait()

    def remove(self) -> None:
        """Stop, and remove every file."""
        self.stop()
        shutil.rmtree(self.root)

    def _processes(self) -> list[proc.Process]:
        """Return the daemons and the processes of jobs: all have the configuration's path in their environment."""
        return [each for each in proc.marked(self.environment) if each.pid != os.getpid()]

    def _controller_answers(self) -> bool:
        return "is UP" in self.call("bash", "-c", "scontrol ping || true")

    def _state_of(self, node: str) -> str:
        return self.call("sinfo", "--noheader", f"--nodes={node}", "--format=%t").split()[0]

    def _await_all_free(self) -> None:
        try:
            wait_until(self._is_all_free, _UP_LIMIT_S, poll_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self._sinfo()}\n{self._log.read_text()[-2000:]}") from error

    def _is_all_free(self) -> bool:
        """Whether every node is idle, and none of its GPUs is counted as in use."""
        try:
            told = {tuple(line.split()) for line in self._sinfo().splitlines()}
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        used = [each.count for _, _, text in told for each in gres.parse(text)]
        return {(node, state) for node, state, _ in told} == {(node, "idle") for node in NODES} and not any(used)

    def _sinfo(self) -> str:
        return self.call("sinfo", "--noheader", "--Node", "--Format=NodeList:20,StateLong:20,GresUsed:60")

    def _spawn(self, argv: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            daemon = subprocess.Popen(
                argv,
                env={**_plain_environment(), **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def _write_files(self) -> None:
        for folder in _FOLDERS:
            (self.root / folder).mkdir()
        for index in range(8):
            os.mknod(self.root / "dev" / f"nvidia{index}", 0o666 | stat.S_IFCHR, _NULL_DEVICE)
        (self.root / "munge").chmod(0o755)
        _write_secret(self.root / "munge" / "munge.key", os.urandom(1024))
        _write_secret(self.root / "etc" / "jwt.key", os.urandom(32))
        controller, *ports = _free_ports(1 + len(NODES))
        nodes = [
            _NODE.format(name=name, port=port, kind="h100" if name in _LARGE else "a100", num_gpus=_num_gpus(name))
            for name, port in zip(NODES, ports, strict=True)
        ]
        self.conf.write_text(
            _CONF.format(
                root=self.root,
                controller_port=controller,
                completion_file=self.completion_file,
                nodes="\n".join(nodes),
            )
        )
        (self.root / "etc" / "gres.conf").write_text(_GRES.format(root=self.root))
        (self.root / "etc" / "topology.conf").write_text(_TOPOLOGY)


@contextlib.contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Run a cluster in a folder of its own for the length of the block."""
    root = Path(tempfile.mkdtemp(prefix="llmsched-slurm-"))
    root.chmod(0o755)  # slurmrestd runs as nobody, and must reach munge's socket
    cluster = SlurmCluster(root)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def _num_gpus(node: str) -> int:
    return 8 if node in _LARGE else 2


def _plain_environment() -> dict[str, str]:
    """Jobs inherit what slurmd was started with: not the settings of some Airflow, or of a test."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "LLMSCHED_", "PYTEST"))
    }


def _write_secret(path: Path, secret: bytes) -> None:
    path.write_bytes(secret)
    path.chmod(0o400)


@contextlib.contextmanager
def _ports_to_ourselves() -> Iterator[None]:
    """Let no other process choose ports before ours listen: the tests' processes all start a cluster at once."""
    with Path(tempfile.gettempdir(), "llmsched-slurm-ports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _free_ports(num: int) -> list[int]:
    """Return ports below the kernel's range for outgoing connections, and below those at which ranks meet."""
    held: list[socket.socket] = []
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(range(10_000, 20_000), 2_000):
            if len(held) == num:
                break
            held.append(stack.enter_context(socket.socket()))
            try:
                held[-1].bind(("127.0.0.1", port))
                ports.append(port)
            except OSError:
                held.pop()
    assert len(ports) == num, ports
    return ports


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _argv(process: proc.Process) -> list[str]:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def _tell(cluster: SlurmCluster) -> None:
    options = {
        "root": str(cluster.shared),
        "slurm_conf": str(cluster.conf),
        "partition": "low",
        "gres": "gpu:h100",
        "slots_per_node": 8,
        "node_shape": "local-cpu",
    }
    sys.stdout.write(
        f"Slurm runs below {cluster.root} with nodes {', '.join(NODES)}.\n"
        f"  export SLURM_CONF={cluster.conf}\n"
        "  sinfo; squeue; srun --partition=low --nodes=2 --gres=gpu:2 hostname\n"
        f'  engine="slurm", engine_options={json.dumps(options)}\n'
        "End it with: make slurm-down\n"
    )


def main(argv: Sequence[str]) -> None:
    """Start or end a cluster that outlives this command."""
    command, folder = argv
    cluster = SlurmCluster(Path(folder).resolve())
    if command == "down":
        if cluster.root.exists():
            cluster.remove()
        return
    if cluster.root.exists():
        raise SystemExit(f"{cluster.root} is there already: end it with make slurm-down")
    cluster.root.mkdir(mode=0o755, parents=True)
    started_s = time.monotonic()
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    sys.stdout.write(f"Up after {time.monotonic() - started_s:.1f} s. ")
    _tell(cluster)


if __name__ == "__main__":
    main(sys.argv[1:])
