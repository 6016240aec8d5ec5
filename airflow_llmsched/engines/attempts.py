"""The attempts of one machine: their directories under one root, and the processes they speak of.

The local engine keeps all nodes of a gang so, and a host reached over SSH its one node: this module runs there as well,
and so needs nothing but the standard library and what is shipped with it (``engines.hosts.bundle``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.launch import asks_for_daemons, whose
from airflow_llmsched.agent.redact import redact, secrets_of
from airflow_llmsched.agent.scratch import MEMORY, clear_after_the_dead, disk_of
from airflow_llmsched.agent.spool import create_json, read_json, tail, write_json
from airflow_llmsched.domain.gang import LaunchRequest
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_request import held_slots, is_attempt_name
from airflow_llmsched.engines.agent_states import GangFacts, NodeFacts, status_of
from airflow_llmsched.engines.attempt_files import AttemptFiles
from airflow_llmsched.errors import CouldNotLookError, InternalError, LaunchError

_FOLDERS = EffectPoint("local.folders")
_BUILD = EffectPoint("local.submit.build")
_REQUEST = EffectPoint("local.submit.request")
_GANG_DIR = EffectPoint("local.submit.gang_dir")
_GRAVE = EffectPoint("local.abandon.build")
_ABANDON = EffectPoint("local.abandon.gang_dir")
_TIDY = EffectPoint("local.submit.tidy")
_SUPERVISOR = EffectPoint("local.submit.supervisor")
_GO = EffectPoint("local.submit.go")
_ABORT = EffectPoint("local.submit.abort")
_END_ABORTED = EffectPoint("local.submit.end_aborted")
_STOP_MARK = EffectPoint("local.stop.mark")
_END_ORPHANS = EffectPoint("local.stop.end_orphans")
_END_REST = EffectPoint("local.stop.end_rest")
_STOP_RECORD = EffectPoint("local.stop.record")
_END_STRAYS = EffectPoint("local.stop.end_strays")

log = logging.getLogger(__name__)

_SPAWN_LIMIT_S = 30.0
_LOCK_LIMIT_S = 90.0  # more than an honest launch takes: its supervisors get the limit above
_LOCK_POLL_S = 0.02
_MAX_REMEMBERED = 4096
_NEW = ".new-"
_KEPT_FROM_RANKS = "AIRFLOW"
"""Airflow's own settings hold its database, keys and connections: no rank needs them."""


class Attempts:
    """Files and processes under one root.

    ``node`` is the one of a gang's nodes that this machine is; None: it is all of them.
    """

    def __init__(self, root: Path, *, node: str | None = None) -> None:
        self._node = node
        self._gangs = root / "gangs"
        self._lock = root / "submit.lock"
        self._ended: set[str] = set()
        self._files: dict[str, AttemptFiles] = {}

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other submits and preemptions out, so that two never count the same slot as free."""
        with _FOLDERS:
            self._gangs.mkdir(parents=True, exist_ok=True)
        with locked(self._lock):
            yield

    def exists(self, name: str) -> bool:
        """Whether there is, or was, an attempt of this name."""
        try:
            return is_attempt_name(name) and bool(self._attempt(name).gang.request.stat())
        except FileNotFoundError:
            return False

    def gang(self, name: str) -> GangDir:
        """Return an attempt's directory."""
        assert is_attempt_name(name), name
        return GangDir(self._gangs / name)

    def names(self) -> list[str]:
        """Return all attempts, live and ended."""
        try:
            return sorted(path.name for path in self._gangs.iterdir() if is_attempt_name(path.name))
        except FileNotFoundError:  # and no other error: what cannot be listed is not empty
            return []

    def create(self, request: LaunchRequest) -> bool:
        """Make the attempt's directory, all at once; False when its name is taken, by whatever."""
        asked = {"v": wire.VERSION, "submitted_at_s": time.time(), "body": dict(request.body)}
        with self._building() as building:
            with _BUILD:
                building.path.mkdir(mode=0o700)
                for node in self._nodes_of(request.body):
                    building.node(node).make()
            with _REQUEST:
                write_json(building.request, asked)
            with _GANG_DIR, _unless_taken():
                building.path.rename(self._gangs / request.key.name)
                return True
        return False

    def abandon(self, name: str) -> bool:
        """Take the name of an attempt that was never submitted; False when there is a gang of that name.

        Waits for no lock: who holds it may be the very submitter that stands still.
        """
        with self._building() as building:
            with _GRAVE:
                building.path.mkdir(mode=0o700, parents=True)
                write_json(building.abandoned, {"v": wire.VERSION, "at_s": time.time()})
            with _ABANDON, _unless_taken():
                building.path.rename(self.gang(name).path)
        return self.abandoned(name) is not None

    def abandoned(self, name: str) -> dict[str, Any] | None:
        """Return the record of an attempt given up before it was submitted, or None."""
        return read_json(self.gang(name).abandoned) if is_attempt_name(name) else None

    @contextlib.contextmanager
    def _building(self) -> Iterator[GangDir]:
        """Yield a directory to be made under a name that nobody reads; what does not appear by the end is removed.

        The name tells whose it is, so that what one left behind who died in the middle goes with the next.
        """
        self._clear_after_the_dead()
        building = GangDir(self._gangs / f"{_NEW}{proc.myself().text()}+{uuid.uuid4().hex}")
        try:
            yield building
        finally:
            if building.path.exists():
                with _TIDY:
                    shutil.rmtree(building.path, ignore_errors=True)

    def _clear_after_the_dead(self) -> None:
        for path in self._gangs.glob(f"{_NEW}*"):
            try:
                whose_it_is = proc.Process.parse(path.name.removeprefix(_NEW).partition("+")[0])
            except ValueError:
                continue
            with contextlib.suppress(proc.ElsewhereError):  # another machine's, which clears up after its own dead
                if not proc.alive(whose_it_is):
                    with _TIDY:
                        shutil.rmtree(path, ignore_errors=True)

    def launch(self, name: str) -> None:
        """Start every node's supervisor, then let them go; or, when one does not start, none. Safe to repeat.

        A submitter that died half way leaves an attempt without go.json; whoever submits it again finishes the launch.
        Supervisors that are there already keep their claim. Raises ``LaunchError``.
        """
        with self.launching(name) as gang:
            if not _is_decided(gang):
                self._start(gang, name)
                _let_go(gang, {})

    def start(self, name: str) -> None:
        """Start the supervisors alone, as ``launch`` does: they wait for ``go``. Raises ``LaunchError``."""
        with self.launching(name) as gang:
            if not _is_decided(gang):
                self._start(gang, name)

    def go(self, name: str, where: Mapping[str, Any]) -> bool:
        """Let the supervisors go, and tell them ``where`` others are; False when somebody is ending the attempt.

        One that supervisors have given up by themselves was let go: those of other machines may be told earlier, and be
        done with it before this one is. Its records say why.
        """
        gang = self.gang(name)
        if gang.stop.exists():
            return False
        if not gang.abort.exists():
            _let_go(gang, where)
        return True

    @contextlib.contextmanager
    def launching(self, name: str) -> Iterator[GangDir]:
        """Keep everybody else from launching this attempt. Raises ``CouldNotLookError``."""
        gang = self.gang(name)
        with locked(gang.submit_lock):
            yield gang

    def _start(self, gang: GangDir, name: str) -> None:
        nodes = self._nodes_of(self.request(name)["body"])
        try:
            spawn_supervisors(gang, name, nodes)
        except (OSError, subprocess.SubprocessError) as error:
            self._give_up(gang, name, nodes, reason=str(error))
            raise LaunchError(f"attempt {name}: {error}; nothing of it is left running") from error

    def _nodes_of(self, body: Mapping[str, Any]) -> list[str]:
        """Return those of an attempt's nodes that are on this machine."""
        return [part["node"] for part in body["nodes"] if self._node in (None, part["node"])]

    def _give_up(self, gang: GangDir, name: str, nodes: list[str], *, reason: str) -> None:
        abort = {"v": wire.VERSION, "node": nodes[0], "at_s": time.time(), "fault": "start_failed", "rank": None}
        with _ABORT:
            gang.node(nodes[0]).write_last(gang.abort, {**abort, "reason": reason}, once=True)
        with _END_ABORTED:
            proc.end_all(lambda: _processes(gang, name, nodes), grace_s=1.0)

    def request(self, name: str) -> dict[str, Any]:
        """Return what was submitted. Raises ``CouldNotLookError`` when it cannot be read."""
        request = read_json(self.gang(name).request)
        if request is None:
            raise CouldNotLookError(f"attempt {name} has no request in {self.gang(name).path}; look again")
        return request

    def facts(self, name: str, *, census: proc.Census | None = None) -> GangFacts:
        """Return what files and processes say about an attempt now; who looks at many gives all the same ``census``."""
        census = census or proc.Census()
        files = self._attempt(name)
        request = files.request()
        if request is None:
            raise CouldNotLookError(f"attempt {name} has no request in {files.gang.path}; look again")
        stop = read_json(files.gang.stop)
        return GangFacts(
            nodes=tuple(_node_facts(files, name, node, census) for node in self._nodes_of(request["body"])),
            submitted_at_s=request["submitted_at_s"],
            start_limit_s=request["body"]["start_limit_s"],
            grace_s=request["body"]["grace_s"],
            go=files.gang.go.exists(),
            stop_at_s=None if stop is None else stop["at_s"],
            abort=read_json(files.gang.abort),
        )

    def _attempt(self, name: str) -> AttemptFiles:
        """Return an attempt's files as remembered; the one remembered longest gives way."""
        known = self._files.get(name)
        if known is None:
            known = AttemptFiles(self.gang(name))
            self._files[name] = known
            if len(self._files) > _MAX_REMEMBERED:
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                    del self._files[next(iter(self._files))]
        return known

    def stop(self, name: str, *, grace_s: float) -> None:
        """End every process of an attempt: its supervisors do it, or, where they cannot, we do. Idempotent."""
        body = self.request(name)["body"]
        if not self._has_ended(name):
            self._stop_nodes(name, self._nodes_of(body), grace_s=grace_s)
        if asks_for_daemons(body):  # whose supervisors may have been killed: they remove nothing then
            with _TIDY:
                clear_after_the_dead(disk_of({**os.environ, **body["environment"]}), MEMORY)

    def _stop_nodes(self, name: str, nodes: list[str], *, grace_s: float) -> None:
        gang = self.gang(name)
        with _STOP_MARK:
            create_json(gang.stop, {"v": wire.VERSION, "at_s": time.time(), "grace_s": grace_s})
        supervisors = {node: gang.node(node).supervisor() for node in nodes}
        alive = {node: each for node, each in supervisors.items() if each is not None and proc.alive(each)}
        deadline_s = time.monotonic() + grace_s + 1.0
        orphaned = [node for node in nodes if node not in alive]
        if orphaned:
            with _END_ORPHANS:
                proc.end_all(lambda: _processes(gang, name, orphaned), grace_s=grace_s)
        while any(proc.alive(each) for each in alive.values()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        with _END_REST:
            left = proc.end_all(lambda: _processes(gang, name, nodes), grace_s=0.0)
        if left:
            raise CouldNotLookError(_not_ended(name, left))
        for node in alive:
            # A supervisor that we had to kill wrote no last record; its node was stopped all the same.
            with _STOP_RECORD:
                create_json(gang.node(node).exit, _stopped_record(node))

    def stray_names(self, census: proc.Census) -> dict[str, dict[proc.Process, dict[str, str]]]:
        """Return the attempts below this root whose directory somebody deleted, and their processes' environments."""
        found: dict[str, dict[proc.Process, dict[str, str]]] = {}
        for process, environment in census.environments(wire.SPOOL).items():
            name = environment.get(wire.ATTEMPT_NAME, "")
            is_here = Path(environment[wire.SPOOL]).is_relative_to(self._gangs / name)
            if is_attempt_name(name) and is_here and not (self._gangs / name).exists():
                found.setdefault(name, {})[process] = environment
        return found

    def _has_ended(self, name: str) -> bool:
        """Whether an attempt has ended by its records; where they make no sense, it is stopped all the same."""
        try:
            return status_of(self.facts(name), now_s=time.time()).phase.ended
        except (InternalError, ValueError, KeyError, TypeError) as error:
            log.warning("attempt %s has a damaged record and is stopped unseen: %s", name, error)
            return False

    def strays(self, name: str, nodes: Sequence[NodeId], *, census: proc.Census | None = None) -> list[proc.Process]:
        """Return the live processes of an attempt whose directory somebody deleted."""
        if not is_attempt_name(name):
            return []
        gang, census = self.gang(name), census or proc.Census()
        return [each for node in nodes for each in gang.processes(name, node, census=census)]

    def end_strays(self, name: str, nodes: Sequence[NodeId], *, grace_s: float) -> None:
        """End them. Raises ``CouldNotLookError`` when one does not end."""
        with _END_STRAYS:
            left = proc.end_all(lambda: self.strays(name, nodes), grace_s=grace_s)
        if left:
            raise CouldNotLookError(_not_ended(name, left))

    def used_slots(self) -> dict[NodeId, frozenset[int]]:
        """Return the slots that attempts still hold, by node."""
        used: dict[NodeId, frozenset[int]] = {}
        for name in self.names():
            if name in self._ended:
                continue
            parts = [] if self.abandoned(name) else self.request(name)["body"]["nodes"]
            holding = [part for part in parts if self.is_using(name, part["node"])]
            if not holding:
                self._ended.add(name)
            for part in holding:
                node = NodeId(part["node"])
                used[node] = used.get(node, frozenset()) | set(held_slots(part))
        return used

    def is_using(self, name: str, node: str) -> bool:
        """Whether an attempt has, or may still get, processes on ``node``."""
        if self.abandoned(name):
            return False
        facts = self.facts(name)
        if not any(each.node == node for each in facts.nodes):
            return False
        status = status_of(facts, now_s=time.time())
        return not next(each for each in status.nodes if each.node == node).phase.ended

    def log_tail(self, name: str, *, rank: int, num_lines: int) -> str:
        """Return the last lines of a rank, on whichever node it ran, without the secrets of its environment."""
        for path in sorted((self.gang(name).path / "nodes").glob(f"*/{wire.LOGS}/{wire.rank_log_name(rank)}")):
            secrets = secrets_of(os.environ, self.request(name)["body"]["environment"])
            return redact(tail(path, num_lines), secrets)
        return ""


def _is_decided(gang: GangDir) -> bool:
    return gang.go.exists() or gang.abort.exists() or gang.stop.exists()


def _let_go(gang: GangDir, where: Mapping[str, Any]) -> None:
    with _GO:
        create_json(gang.go, {"v": wire.VERSION, "at_s": time.time(), **where})


def spawn_supervisors(gang: GangDir, name: str, nodes: list[str]) -> None:
    """Start the supervisor of each node, detached from this process; return once all have claimed their nodes.

    They start nothing before go.json is there. Raises ``OSError`` or ``subprocess.SubprocessError``.
    """
    environ = {key: value for key, value in os.environ.items() if _KEPT_FROM_RANKS not in key}
    request = read_json(gang.request)
    if request is None:
        raise FileNotFoundError(f"{gang.request} is missing: {gang.path} is no attempt's directory")
    environ |= whose(request["body"])
    starting = []
    try:
        for node in nodes:
            with _SUPERVISOR, gang.node(node).supervisor_log.open("ab") as output:
                starting.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "airflow_llmsched.agent.supervisor", str(gang.path), node],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        cwd="/",
                        env={**environ, **gang.marks(name, node)},
                        start_new_session=True,
                    )
                )
    finally:
        # Each returns as soon as its supervisor stands by itself; waiting also leaves no zombie behind.
        codes = [process.wait(_SPAWN_LIMIT_S) for process in starting]
    for node, code in zip(nodes, codes, strict=True):
        if code != 0:
            last = tail(gang.node(node).supervisor_log, 20)
            raise OSError(f"the supervisor of node {node} did not start; its last lines:\n{last}")


def _node_facts(attempt: AttemptFiles, name: str, node: str, census: proc.Census) -> NodeFacts:
    files = attempt.node(node)
    supervisor = attempt.supervisor(node)
    is_alive = supervisor is not None and proc.alive(supervisor)
    # Read after the process was looked at: an orderly end in between is then seen as such.
    end = read_json(files.exit)
    started, alive, notice = attempt.started(node), read_json(files.alive), read_json(files.notice)
    is_orphan = supervisor is not None and not is_alive and end is None
    return NodeFacts(
        node=NodeId(node),
        claimed=supervisor is not None,
        supervisor_alive=is_alive,
        stray=is_orphan and bool(attempt.gang.processes(name, node, census=census, left_by=supervisor)),
        started_at_s=None if started is None else started["at_s"],
        alive_at_s=None if alive is None else alive["at_s"],
        notice_deadline_s=None if notice is None else notice["deadline_s"],
        exit=end,
    )


def _processes(gang: GangDir, name: str, nodes: list[str]) -> list[proc.Process]:
    return [process for node in nodes for process in gang.processes(name, node)]


def _not_ended(name: str, left: list[proc.Process]) -> str:
    return f"attempt {name}: processes {[each.pid for each in left]} could not be ended; retry"


def _stopped_record(node: str) -> dict[str, Any]:
    return {
        "v": wire.VERSION,
        "node": node,
        "at_s": time.time(),
        "outcome": "stopped",
        "fault": None,
        "reason": "stopped by the engine",
        "ends": [],
    }


@contextlib.contextmanager
def _unless_taken() -> Iterator[None]:
    """Give up renaming a directory to a name that is taken: one that holds anything is never replaced."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel lets go of when its holder dies. One that stands still is not waited for for ever.

    Raises ``CouldNotLookError``.
    """
    give_up_s = time.monotonic() + _LOCK_LIMIT_S
    with path.open("ab") as file:
        while not _try_lock(file):
            if time.monotonic() >= give_up_s:
                raise CouldNotLookError(
                    f"somebody has held {path} for {_LOCK_LIMIT_S:.0f} s, such as a worker that stands still in the "
                    "middle of a submit (lslocks names it): look again, or end it"
                )
            time.sleep(_LOCK_POLL_S)  # flock has no time limit of its own
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
