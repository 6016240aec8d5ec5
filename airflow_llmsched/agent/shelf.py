"""The attempts' directories on a cluster's file system, as an engine needs them: by calls, or by a command over there.

``python -P -m airflow_llmsched.agent.shelf`` does on the machine it runs on what one of ``Shelf``'s methods does: it
reads ``{"root": ..., "call": ..., "arguments": {...}}`` and prints ``{"result": ...}``, each as JSON. So whoever sees
none of the cluster's files can still work with them, and both ways are one code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.redact import redact, secrets_of
from airflow_llmsched.agent.spool import create_json, read_json, tail, write_json

_NEW = ".new-"
_STALE_S = 24 * 3600.0
_MAX_REMEMBERED = 8192
ENVIRONMENT = "environment.json"
"""In an attempt's directory: what its ranks find in their environment. The batch part reads it."""

CALLS = ("claim", "abandon", "names", "look", "stop", "give_up", "end", "log_tails")


class Shelf:
    """Every attempt below one root, which somebody made: where it is not, its file system is not mounted.

    Raises ``OSError`` or ``ValueError`` for what is there but cannot be read, and where there is no root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._gangs = root / "gangs"
        self._known: dict[str, _Known] = {}

    def claim(self, *, name: str, submit: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
        """Make the attempt's directory, all at once; False when its name is taken, by whatever.

        ``environment`` is for its ranks: it lies there, for its owner alone, and in no script that Slurm keeps.
        """
        records = {
            "submit.json": {"v": wire.VERSION, "at_s": time.time(), **submit},
            ENVIRONMENT: {"v": wire.VERSION, "environment": dict(environment)},
        }
        return self._appear(name, records)

    def abandon(self, *, name: str) -> bool:
        """Take the name of an attempt that nobody submitted; False when somebody had. Safe to repeat."""
        self._appear(name, {"abandoned.json": {"v": wire.VERSION, "at_s": time.time()}})
        return self._gang(name).abandoned.exists()

    def names(self) -> list[str]:
        """Return all attempts, live, ended and abandoned."""
        try:
            return sorted(path.name for path in self._gangs.iterdir() if not path.name.startswith("."))
        except FileNotFoundError:  # and no other error: what cannot be listed is not empty
            self._be_there()
            return []

    def look(self, *, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """Return what the files say of each attempt, None of one that has no directory.

        Of one whose files cannot be read, ``unreadable`` says why.
        """
        found: dict[str, dict[str, Any] | None] = {}
        for name in names:
            try:
                found[name] = self._look(name)
            except (OSError, ValueError, KeyError, TypeError) as error:
                found[name] = {"unreadable": f"{name}: {error}"}
        return found

    def stop(self, *, name: str, grace_s: float) -> None:
        """Tell the attempt's agents to end it, and its job not to start it. Idempotent: the first grace holds."""
        try:
            create_json(self._gang(name).stop, {"v": wire.VERSION, "at_s": time.time(), "grace_s": grace_s})
        except FileNotFoundError:
            self._be_there()

    def give_up(self, *, name: str, reason: str) -> bool:
        """Take the job's place, so that no job will ever start the attempt; False when a job has started it."""
        gang = self._gang(name)
        create_json(gang.job, {"v": wire.VERSION, "at_s": time.time(), "job_id": None, "reason": reason})
        job = read_json(gang.job)
        return job is not None and job["job_id"] is None

    def end(self, *, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Write down how the attempt ended, for when nobody remembers it; return what stands: the first word."""
        gang = self._gang(name)
        create_json(gang.end, {"v": wire.VERSION, "at_s": time.time(), "status": dict(status)})
        end = read_json(gang.end)
        assert end is not None, gang.end
        return end

    def log_tails(self, *, name: str, ranks: Sequence[int], num_lines: int) -> list[str]:
        """Return the last lines of each rank, on whichever node it ran, without the secrets of its environment."""
        gang = self._gang(name)
        request = read_json(gang.request)
        if request is None:
            return [""] * len(ranks)
        secrets = secrets_of(os.environ, request["body"]["environment"])
        node_of = {
            rank: part["node"]
            for part in request["body"]["nodes"]
            for rank in (*part["ranks"], *(helper["member"] for helper in part.get("helpers", ())))
        }
        found = []
        for rank in ranks:
            path = gang.node(node_of.get(rank, "-")).logs / wire.rank_log_name(rank)
            found.append(redact(tail(path, num_lines), secrets) if path.exists() else "")
        return found

    def _be_there(self) -> None:
        """Tell a file system that is not mounted from one that holds nothing."""
        if not self._root.is_dir():
            raise FileNotFoundError(f"{self._root} is not there: is the cluster's file system mounted on this machine?")

    def _gang(self, name: str) -> GangDir:
        if "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no attempt's name")
        return GangDir(self._gangs / name)

    def _appear(self, name: str, records: Mapping[str, Mapping[str, Any]]) -> bool:
        """Make the directory with its records under a name that nobody reads, and give it its own at once."""
        target = self._gang(name).path
        self._be_there()
        self._gangs.mkdir(exist_ok=True)
        self._clear_what_the_dead_left()
        building = self._gangs / f"{_NEW}{uuid.uuid4().hex}"
        building.mkdir(mode=0o700)
        try:
            for file, record in records.items():
                write_json(building / file, dict(record))
                (building / file).chmod(0o600)
            building.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return True

    def _clear_what_the_dead_left(self) -> None:
        for path in self._gangs.glob(f"{_NEW}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _look(self, name: str) -> dict[str, Any] | None:
        known = self._remembered(name)
        gang = known.gang
        known.follow_request()
        if known.submit is None:
            abandoned = read_json(gang.abandoned)
            if abandoned is not None:
                return {"abandoned": abandoned}
            known.submit = read_json(gang.submit)
            if known.submit is None and gang.path.exists():
                raise ValueError(
                    f"{gang.path} is no attempt's directory: it has neither submit.json nor abandoned.json"
                )
            if known.submit is None:
                self._be_there()
                return None
        end = read_json(gang.end)
        if end is not None:
            return {"submit": known.submit, "end": end}
        return {
            "submit": known.submit,
            "job": known.job or read_json(gang.job),
            "stop": read_json(gang.stop),
            "abort": read_json(gang.abort),
            "go": known.has_gone(),
            "life": known.life(),
        }

    def _remembered(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            known = self._known[name] = _Known(self._gang(name))
        return known


class _Known:
    """One attempt's files, and of what they hold that which never changes while its job is not started again."""

    def __init__(self, gang: GangDir) -> None:
        self.gang = gang
        self._forget()

    def _forget(self) -> None:
        self.submit: dict[str, Any] | None = None
        self.job: dict[str, Any] | None = None
        self.request: dict[str, Any] | None = None
        self._stamp: int | None = None
        self._nodes: list[_KnownNode] = []
        self._has_gone = False

    def follow_request(self) -> None:
        """Forget everything when the request is gone, or another."""
        try:
            stamp = self.gang.request.stat().st_mtime_ns
        except FileNotFoundError:
            stamp = None
        if stamp is not None and stamp == self._stamp:
            return
        self._forget()
        if stamp is not None:
            self.job = read_json(self.gang.job)
            self.request = read_json(self.gang.request)
        if self.request is not None:
            self._stamp = stamp
            self._nodes = [_KnownNode(self.gang, part["node"]) for part in self.request["body"]["nodes"]]

    def has_gone(self) -> bool:
        """Whether all ranks were let start."""
        self._has_gone = self._has_gone or self.gang.go.exists()
        return self._has_gone

    def life(self) -> dict[str, Any] | None:
        """Return what the job of this attempt has written; None while it has not begun."""
        if self.request is None:
            return None
        body = self.request["body"]
        return {
            "submitted_at_s": self.request["submitted_at_s"],
            "start_limit_s": body["start_limit_s"],
            "grace_s": body["grace_s"],
            "restart": self.request.get("restart", 0),
            "nodes": [node.look() for node in self._nodes],
        }


class _KnownNode:
    """One node's part of it."""

    def __init__(self, gang: GangDir, node: str) -> None:
        self._node = node
        self._files = gang.node(node)
        self._is_claimed = False
        self._started_at_s: float | None = None

    def look(self) -> dict[str, Any]:
        """Return what the node's supervisor has written."""
        files = self._files
        self._is_claimed = self._is_claimed or files.is_claimed()
        if self._started_at_s is None:
            self._started_at_s = _value(read_json(files.started), "at_s")
        return {
            "node": self._node,
            "claimed": self._is_claimed,
            "started_at_s": self._started_at_s,
            "alive_at_s": _value(read_json(files.alive), "at_s"),
            "notice_deadline_s": _value(read_json(files.notice), "deadline_s"),
            "exit": read_json(files.exit),
        }


def _value(record: Mapping[str, Any] | None, name: str) -> Any:
    return None if record is None else record[name]


def main() -> int:
    """Do the one call that standard input asks for."""
    asked = json.loads(sys.stdin.buffer.read())
    if asked["call"] not in CALLS:
        sys.stderr.write(f"there is no call {asked['call']!r}\n")
        return 2
    try:
        result = getattr(Shelf(Path(asked["root"])), asked["call"])(**asked["arguments"])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps({"result": result}, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
