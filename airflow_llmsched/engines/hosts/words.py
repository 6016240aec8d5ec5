"""What a host's answer means: from its JSON to values, with nothing believed that is not checked. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.domain.identity import NodeId, RunOrigin
from airflow_llmsched.engines.agent_states import NodeFacts
from airflow_llmsched.engines.hosts.bundle import MARK

VERSION = 1
MAX_TEXT = 16_000
_MAX_DEPTH = 12
_CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\ufffd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """What an attempt says of itself on a host. ``nodes`` are all of its nodes, or those that are known."""

    channel_root: str
    submitted_at_s: float
    nodes: tuple[NodeId, ...]
    origin: RunOrigin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One host's part of an attempt: its facts, and the gang's as far as this host was told of them."""

    node: NodeFacts
    whose: Whose
    go: bool = False
    stop_at_s: float | None = None
    abort: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The host has no part of the attempt: it never came, or was given up there (``for_good``: then it never will)."""

    for_good: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Nobody could see the host's part, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """Nobody sees the host, and it is proven that nothing of the attempt can be alive there: why, and since when.

    ``at_s`` (Unix seconds) is None where whoever lists the hosts says so, without a time.
    """

    reason: str
    at_s: float | None = None


Sight = Part | Gone | Unseen | Off
"""What is known of one host's part of one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What one host says is on it. ``all_names`` says of each attempt whether it is live; None where not asked."""

    at_s: float
    sights: Mapping[str, Sight]
    all_names: Mapping[str, bool]
    used_slots: frozenset[int]
    gpus: Mapping[str, Any] | None
    folder_seen: bool | None


Seen = Survey | Unseen | Off
"""What is known of one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The host answered that it could not do it, or something that is no answer."""

    reason: str


def answer_of(output: bytes) -> Mapping[str, Any] | Failed | None:
    """Return what the command on the host answered; None when it never spoke: it is not there, or broke."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK.encode()):
            return _answer(line[len(MARK) :])
    return None


def _answer(line: bytes) -> Mapping[str, Any] | Failed:
    try:
        plain = tame(json.loads(line))
    except (ValueError, RecursionError):
        return Failed(reason="its answer is damaged")
    if not isinstance(plain, dict) or plain.get("v") != VERSION:
        return Failed(reason="its answer is of another version")
    if isinstance(plain.get("ok"), dict):
        answer: Mapping[str, Any] = plain["ok"]
        return answer
    return Failed(reason=str(plain.get("failed") or plain.get("refused") or "its answer is damaged"))


def tame(value: Any, *, depth: int = 0) -> Any:
    """Return JSON without what spoils logs and databases: control characters, endless texts, numbers that are none.

    Raises ``ValueError`` for what is nested too deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value.translate(_CONTROL)[-MAX_TEXT:]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number")
    if isinstance(value, list):
        return [tame(each, depth=depth + 1) for each in value]
    if isinstance(value, dict):
        return {tame(key, depth=depth + 1): tame(each, depth=depth + 1) for key, each in value.items()}
    return value


def survey_of(answer: Mapping[str, Any], *, node: NodeId) -> Survey | Failed:
    """Return what a host says is on it."""
    try:
        return Survey(
            at_s=float(answer["at_s"]),
            sights={str(name): sight_of(each, node=node) for name, each in answer["attempts"].items()},
            all_names={str(name): each is True for name, each in answer.get("all", {}).items()},
            used_slots=frozenset(int(slot) for slot in answer.get("used", [])),
            gpus=answer.get("gpus"),
            folder_seen=answer.get("folder_seen"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return Failed(reason=f"its answer makes no sense ({type(error).__name__})")


def sight_of(plain: Mapping[str, Any], *, node: NodeId) -> Sight:
    """Return one host's part of one attempt. Raises what reading nonsense raises."""
    kind = plain["kind"]
    if kind in ("absent", "abandoned"):
        return Gone(for_good=kind == "abandoned")
    if kind == "unreadable":
        return Unseen(reason=str(plain["reason"]))
    whose = _whose(plain["whose"])
    if kind == "stray":
        return Part(node=NodeFacts(node=node, claimed=True, stray=True), whose=whose, go=True)
    if kind != "here":
        raise ValueError(f"unknown kind {kind!r}")
    facts = plain["facts"]
    (part,) = facts["nodes"]
    return Part(
        node=_node(part, node=node),
        whose=whose,
        go=facts["go"] is True,
        stop_at_s=_time(facts["stop_at_s"]),
        abort=_abort(facts["abort"]),
    )


def whose_of(request: Mapping[str, Any]) -> Whose:
    """Return what a recorded request says of its gang."""
    body = request["body"]
    nodes = [part["node"] for part in body["nodes"]]
    told = {"channel_root": body["channel_root"], "origin": body.get("origin"), "nodes": nodes}
    return _whose({**told, "submitted_at_s": request["submitted_at_s"]})


def _whose(plain: Mapping[str, Any]) -> Whose:
    origin = plain["origin"]
    return Whose(
        channel_root=str(plain["channel_root"]),
        submitted_at_s=float(plain["submitted_at_s"]),
        nodes=tuple(NodeId(str(node)) for node in plain["nodes"]),
        origin=None if origin is None else RunOrigin(**origin),
    )


def _node(plain: Mapping[str, Any], *, node: NodeId) -> NodeFacts:
    end = plain["exit"]
    return NodeFacts(
        node=node,
        claimed=plain["claimed"] is True,
        supervisor_alive=plain["supervisor_alive"] is True,
        stray=plain["stray"] is True,
        started_at_s=_time(plain["started_at_s"]),
        alive_at_s=_time(plain["alive_at_s"]),
        notice_deadline_s=_time(plain["notice_deadline_s"]),
        exit=None if end is None else _exit(end),
    )


def _exit(plain: Mapping[str, Any]) -> dict[str, Any]:
    ends = [
        {
            **each,
            "rank": int(each["rank"]),
            "at_s": float(each["at_s"]),
            "exit_code": _number(each["exit_code"]),
            "signal": _number(each["signal"]),
            "forced": each["forced"] is True,
            "log_tail": str(each["log_tail"]),
        }
        for each in plain["ends"]
    ]
    reason = str(plain["reason"])
    return {**plain, "at_s": float(plain["at_s"]), "outcome": str(plain["outcome"]), "reason": reason, "ends": ends}


def _abort(plain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if plain is None:
        return None
    return {
        **plain,
        "at_s": float(plain["at_s"]),
        "fault": str(plain["fault"]),
        "reason": str(plain["reason"]),
        "rank": _number(plain["rank"]),
    }


def _time(value: Any) -> float | None:
    return None if value is None else float(value)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
