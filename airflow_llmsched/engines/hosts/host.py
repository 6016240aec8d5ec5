"""The engine's verbs on one host, run there over SSH: a line of JSON in, a line of JSON out. Standard library only.

It keeps this host's part of each attempt as the local engine keeps all of them (``engines.attempts``). Every verb may
be repeated. Nothing here waits for anybody: a supervisor it starts outlives the connection.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.spool import create_json, read_json, write_json
from airflow_llmsched.domain.gang import LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.slots import taken_of
from airflow_llmsched.engines.attempts import Attempts
from airflow_llmsched.engines.hosts import gpus, host_files
from airflow_llmsched.errors import LlmschedError

VERSION = 1
MARK = "llmsched-answer:"  # as in ``bundle``, which is not shipped
_MAX_NAMES = 20_000

STAY = "stay"
"""Instead of a verb: the command stays, and does the verb that each line names."""

IDLE_LIMIT_S = 600.0

Told = Mapping[str, Any]


def main(argv: list[str]) -> int:
    """Do the verb ``argv[0]`` and write the answer; or stay, and do the verb that each line names.

    One that stays ends with its connection, or when nobody has asked it for a while: a line that was cut is not heard.
    """
    os.umask(0o077)
    lines = sys.stdin.buffer
    if argv[0] != STAY:
        _answer(argv[0], lines.readline())
        return 0
    while select.select([lines], [], [], IDLE_LIMIT_S)[0] and (line := lines.readline()):
        _answer(None, line)
    return 0


def _answer(verb: str | None, line: bytes) -> None:
    """Do what a line says, and write one. What goes wrong is an answer as well."""
    try:
        told = json.loads(line)
        answer: dict[str, Any] = {"ok": VERBS[verb or told["verb"]](told)}
    except (LlmschedError, OSError, ValueError, KeyError, TypeError) as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    sys.stdout.write(f"{MARK}{json.dumps({'v': VERSION, **answer})}\n")
    sys.stdout.flush()


def start(told: Told) -> dict[str, Any]:
    """Make this host's part of an attempt and start its supervisor, which waits for ``go``.

    Returns its claim, or why there is none: ``abandoned``, ``stray``, ``taken`` slots.
    """
    attempts, name = _attempts(told), told["name"]
    with attempts.exclusive():
        if not attempts.exists(name):
            if attempts.abandoned(name):
                return {"abandoned": True}
            if attempts.strays(name, [NodeId(told["node"])]):
                return {"stray": True}
            taken = sorted(taken_of(told["slots"], attempts.used_slots().get(NodeId(told["node"]), ())))
            if taken:
                return {"taken": taken}
            attempts.create(_request(told))
    gang = attempts.gang(name)
    create_json(gang.token, {"v": wire.VERSION, "token": told["token"]})
    if told["grant"] is not None:
        links = Path(_links(told))
        links.mkdir(mode=0o700, exist_ok=True)
        write_json(links / f"{told['node']}.json", told["grant"])
    if told.get("cloud"):
        os.environ[wire.METADATA] = told["cloud"]
    os.environ["PYTHONPATH"] = os.pathsep.join([*told["code"], sys.path[0]])
    attempts.start(name)
    return {"claim": read_json(gang.node(told["node"]).path / "claim.json")}


def go(told: Told) -> dict[str, Any]:
    """Let the supervisor go, and tell it where the others are."""
    return {"went": _attempts(told).go(told["name"], told["where"])}


def stop(told: Told) -> dict[str, Any]:
    """End everything of an attempt on this host; where nothing is, see to it that nothing comes."""
    attempts, name = _attempts(told), told["name"]
    if attempts.exists(name):
        attempts.stop(name, grace_s=told["grace_s"])
    elif attempts.strays(name, [NodeId(told["node"])]):
        attempts.end_strays(name, [NodeId(told["node"])], grace_s=told["grace_s"])
    elif not attempts.abandon(name):
        attempts.stop(name, grace_s=told["grace_s"])  # it has just come
    return {}


def survey(told: Told) -> dict[str, Any]:
    """Say what is on this host: of the attempts ``names``, and, as asked, of all (``all``), of slots and of GPUs."""
    attempts, node, census = _attempts(told), NodeId(told["node"]), proc.Census()
    strays = attempts.stray_names(census)
    answer: dict[str, Any] = {
        "at_s": time.time(),
        "boot_id": proc.boot_id(),
        "attempts": {name: _sight(attempts, node, name, census, strays) for name in told["names"]},
    }
    if told.get("all"):
        names = sorted({*attempts.names(), *strays})[-_MAX_NAMES:]
        live = [name for name in names if name in strays or attempts.is_using(name, node)]
        answer["all"] = {name: name in live for name in names}
    if told.get("slots"):
        answer["used"] = sorted(attempts.used_slots().get(node, frozenset()))
    if told.get("gpus"):
        answer["gpus"] = gpus.look()
    if told.get("folder_seen") is not None:
        answer["folder_seen"] = Path(told["folder_seen"]).exists()
    return answer


def tail(told: Told) -> dict[str, Any]:
    """Return the last lines of each of some ranks."""
    attempts, name = _attempts(told), told["name"]
    if not attempts.exists(name):
        return {"texts": {}}
    return {"texts": {rank: attempts.log_tail(name, rank=rank, num_lines=told["num_lines"]) for rank in told["ranks"]}}


VERBS: Mapping[str, Callable[[Told], dict[str, Any]]] = {
    "start": start,
    "go": go,
    "stop": stop,
    "survey": survey,
    "tail": tail,
    "files": host_files.look,
    "take": host_files.take,
}


def _attempts(told: Told) -> Attempts:
    return Attempts(Path(told["folder"]), node=told["node"])


def _links(told: Told) -> str:
    return f"{told['folder']}/gangs/{told['name']}/links"


def _request(told: Told) -> LaunchRequest:
    body = dict(told["body"])
    if told["grant"] is not None:
        body["channel_links"] = _links(told)
    key = AttemptKey(run=RunKey(body["run_key"]), generation=body["generation"], attempt=body["attempt"])
    return LaunchRequest(engine="hosts", key=key, body=body)


def _sight(
    attempts: Attempts,
    node: NodeId,
    name: str,
    census: proc.Census,
    strays: Mapping[str, Mapping[proc.Process, Mapping[str, str]]],
) -> dict[str, Any]:
    """Return what of one attempt is here. What cannot be read is said of that attempt alone."""
    try:
        if attempts.exists(name):
            return _facts(attempts, name, census)
        abandoned = attempts.abandoned(name)
    except (LlmschedError, OSError, ValueError, KeyError, TypeError) as error:
        return {"kind": "unreadable", "reason": f"{type(error).__name__}: {error}"}
    if abandoned is not None:
        return {"kind": "abandoned", "at_s": abandoned["at_s"]}
    if name in strays:
        said = next(iter(strays[name].values()))
        began_s = min(proc.started_at_s(process) for process in strays[name])
        origin = json.loads(said[wire.ORIGIN])
        whose = {"channel_root": said[wire.CHANNEL], "origin": origin, "submitted_at_s": began_s}
        return {"kind": "stray", "whose": {**whose, "nodes": [str(node)]}}
    return {"kind": "absent"}


def _facts(attempts: Attempts, name: str, census: proc.Census) -> dict[str, Any]:
    facts = attempts.facts(name, census=census)
    body = attempts.request(name)["body"]
    return {
        "kind": "here",
        "facts": {**dataclasses.asdict(facts), "nodes": [dataclasses.asdict(node) for node in facts.nodes]},
        "whose": {
            "channel_root": body["channel_root"],
            "origin": body.get("origin"),
            "submitted_at_s": facts.submitted_at_s,
            "nodes": [part["node"] for part in body["nodes"]],
        },
    }
