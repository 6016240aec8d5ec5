"""How supervisors on machines of their own talk: lines of JSON, each with a proof that a holder of the token wrote it.

Pure: bytes in, bytes out. The token, which the gang's nodes share by 0600 files, never crosses the wire. Each side
sends a nonce; the key of the connection follows from token and nonces, and a line's proof from the key, the direction
and how many lines went before. So nothing can be forged, repeated, left out or carried over to another connection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_llmsched.agent.spool import parse

VERSION = 1
MAX_LINE_BYTES = 256 * 1024
"""Longest line of a peer: far above what a node has to say, with room for a reason that quotes log lines."""

MAX_TEXT_LENGTH = 30_000
"""Characters of a reason that are sent; what is longer is cut in the middle."""

_MAX_HELLO_BYTES = 1024
_NUM_PORTS = 2**16
_NONCE_BYTES = 32
_PROOF_LENGTH = 64


class NotAPeerError(ValueError):
    """What came is not from a supervisor of this gang, or not from one that can be understood."""


class Told(NamedTuple):
    """What a guest says of itself, whole each time. ``left`` is the outcome with which it ends.

    ``ports`` are held there for its members. ``notice_in_s`` is how long the platform leaves it yet; a moment would be
    one of its own clock.
    """

    here: bool = False
    armed: bool = False
    started: bool = False
    done: bool = False
    left: str | None = None
    ports: Sequence[int] = ()
    notice_in_s: float | None = None
    abort: Mapping[str, Any] | None = None
    stop: Mapping[str, Any] | None = None


class News(NamedTuple):
    """What the host says of the whole gang, whole each time; ``at_s`` is its clock, ``left`` its own outcome.

    ``ending``: all trainers of some node have exited 0, ``done``: of every node. ``daemon`` is what the host's launcher
    asks the guest to run.
    """

    at_s: float
    go: bool = False
    begin_in_s: float | None = None
    done: bool = False
    ending: bool = False
    left: str | None = None
    meeting: tuple[str, int] | None = None
    ports: Mapping[str, Sequence[int]] = {}
    daemon: Sequence[str] | None = None
    notices_in_s: Mapping[str, float] = {}
    abort: Mapping[str, Any] | None = None
    stop: Mapping[str, Any] | None = None


class Session:
    """One connection, as either side sees it. ``node`` is the guest's: the host learns it by the guest's hello."""

    def __init__(self, token: bytes, *, gang: str, node: str | None = None) -> None:
        self._token = token
        self._gang = gang
        self._is_guest = node is not None
        self.node = node
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._key: bytes | None = None
        self._num_sent = 0
        self._num_taken = 0
        self._data = b""

    @property
    def is_open(self) -> bool:
        """Whether messages can be wrapped: a host knows who it talks to, a guest the host's nonce."""
        return self._key is not None

    def greeting(self) -> bytes:
        """Return what a host sends first."""
        return _line({"v": VERSION, "nonce": self._nonce})

    def wrap(self, message: Told | News) -> bytes:
        """Return a message as a line."""
        plain = {name: _cut(value) for name, value in message._asdict().items()}
        body = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        proof = self._proof("guest" if self._is_guest else "host", self._num_sent, body)
        self._num_sent += 1
        return proof + b" " + body + b"\n"

    def take(self, data: bytes) -> tuple[list[dict[str, Any]], bytes]:
        """Take in what came; return the messages now complete, and what must be sent in answer.

        Raises ``NotAPeerError``: then the connection is worth nothing.
        """
        self._data += data
        messages: list[dict[str, Any]] = []
        answer = b""
        while b"\n" in self._data:
            line, _, self._data = self._data.partition(b"\n")
            self._check_length(line)
            if self._key is not None:
                messages.append(self._open(line))
            elif self._is_guest:
                answer += self._answer_greeting(line)
            else:
                self._take_hello(line)
        self._check_length(self._data)
        return messages, answer

    def _check_length(self, line: bytes) -> None:
        if len(line) > (_MAX_HELLO_BYTES if self._key is None else MAX_LINE_BYTES):
            raise NotAPeerError("sent a line that is too long")

    def _answer_greeting(self, line: bytes) -> bytes:
        greeting = _object(line)
        self._agree(greeting, node=str(self.node), host_nonce=greeting.get("nonce"), guest_nonce=self._nonce)
        proof = self._proof("hello", 0, b"").decode()
        return _line({"v": VERSION, "node": self.node, "nonce": self._nonce, "proof": proof})

    def _take_hello(self, line: bytes) -> None:
        hello = _object(line)
        node, proof = hello.get("node"), hello.get("proof")
        if not isinstance(node, str) or not isinstance(proof, str):
            raise NotAPeerError("did not introduce itself")
        self._agree(hello, node=node, host_nonce=self._nonce, guest_nonce=hello.get("nonce"))
        if not hmac.compare_digest(self._proof("hello", 0, b""), proof.encode(errors="replace")):
            self._key = None
            raise NotAPeerError("does not hold this gang's token")
        self.node = node

    def _agree(self, said: Mapping[str, Any], *, node: str, host_nonce: Any, guest_nonce: Any) -> None:
        if said.get("v") != VERSION:
            raise NotAPeerError(f"speaks version {str(said.get('v'))[:20]} and not {VERSION}")
        theirs = host_nonce if self._is_guest else guest_nonce
        if not isinstance(theirs, str) or len(theirs) != 2 * _NONCE_BYTES:
            raise NotAPeerError("sent no nonce")
        agreed = json.dumps([VERSION, self._gang, node, host_nonce, guest_nonce]).encode()
        self._key = hmac.digest(self._token, b"session " + agreed, hashlib.sha256)

    def _open(self, line: bytes) -> dict[str, Any]:
        assert self._key is not None
        proof, _, body = line.partition(b" ")
        right = self._proof("host" if self._is_guest else "guest", self._num_taken, body)
        if not hmac.compare_digest(right, proof):
            raise NotAPeerError("sent a line without the right proof")
        self._num_taken += 1
        return _object(body)

    def _proof(self, who: str, number: int, body: bytes) -> bytes:
        assert self._key is not None
        return hmac.new(self._key, f"{who} {number} ".encode() + body, hashlib.sha256).hexdigest().encode()


def told_of(plain: Mapping[str, Any]) -> Told:
    """Read a guest's message. Raises ``NotAPeerError``."""
    try:
        return Told(
            here=plain["here"] is True,
            armed=plain["armed"] is True,
            started=plain["started"] is True,
            done=plain["done"] is True,
            left=_maybe(str, plain["left"]),
            ports=_ports_of(plain["ports"]),
            notice_in_s=_maybe(_number, plain["notice_in_s"]),
            abort=_abort_of(plain["abort"]),
            stop=_stop_of(plain["stop"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotAPeerError(f"sent what makes no sense ({type(error).__name__})") from None


def news_of(plain: Mapping[str, Any]) -> News:
    """Read the host's message. Raises ``NotAPeerError``."""
    try:
        meeting = plain["meeting"]
        return News(
            at_s=_number(plain["at_s"]),
            go=plain["go"] is True,
            begin_in_s=_maybe(_number, plain["begin_in_s"]),
            done=plain["done"] is True,
            ending=plain["ending"] is True,
            left=_maybe(str, plain["left"]),
            ports={str(node): _ports_of(ports) for node, ports in plain["ports"].items()},
            daemon=_maybe(lambda argv: tuple(str(part) for part in argv), plain["daemon"]),
            meeting=None if meeting is None else (str(meeting[0]), int(meeting[1])),
            notices_in_s={str(node): _number(in_s) for node, in_s in plain["notices_in_s"].items()},
            abort=_abort_of(plain["abort"]),
            stop=_stop_of(plain["stop"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise NotAPeerError(f"sent what makes no sense ({type(error).__name__})") from None


def _abort_of(plain: Any) -> dict[str, Any] | None:
    if plain is None:
        return None
    return {
        "v": VERSION,
        "node": str(plain["node"]),
        "at_s": _number(plain["at_s"]),
        "fault": str(plain["fault"]),
        "reason": str(plain["reason"]),
        "rank": _maybe(int, plain["rank"]),
    }


def _stop_of(plain: Any) -> dict[str, Any] | None:
    if plain is None:
        return None
    return {"v": VERSION, "at_s": _number(plain["at_s"]), "grace_s": _number(plain["grace_s"])}


def _ports_of(plain: Any) -> tuple[int, ...]:
    ports = tuple(int(port) for port in plain)
    if not all(0 < port < _NUM_PORTS for port in ports):
        raise ValueError("not a port")
    return ports


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a number")
    return number


def _maybe(kind: Any, value: Any) -> Any:
    return None if value is None else kind(value)


def _cut(value: Any) -> Any:
    """Shorten the one text of a message that may be long: the reason of an abort."""
    if not isinstance(value, Mapping) or len(str(value.get("reason", ""))) <= MAX_TEXT_LENGTH:
        return value
    reason, half = value["reason"], MAX_TEXT_LENGTH // 2
    return {**value, "reason": f"{reason[:half]}\n[...]\n{reason[-half:]}"}


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    found = parse(line)
    if found is None:
        raise NotAPeerError("sent something that is no JSON object")
    return found
