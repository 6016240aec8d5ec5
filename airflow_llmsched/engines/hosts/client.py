"""Asks hosts: one command of ours on each, all at once, over the connections that ``engines.ssh`` keeps. Only I/O.

The command is shipped to a host the first time that it turns out not to be there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines import ssh
from airflow_llmsched.engines.hosts import bundle
from airflow_llmsched.engines.hosts.inventory import Host
from airflow_llmsched.engines.hosts.words import Failed, Unseen, answer_of
from airflow_llmsched.engines.ssh import Access, Command, Done, Unanswered

_SHIP = EffectPoint("hosts.ship")

log = logging.getLogger(__name__)

_SHIP_LIMIT_S = 60.0
_NO_SUCH_COMMAND = 127
_STAY = "stay"  # as in ``engines.hosts.host``

_KEPT = ("survey", "go", "tail")
"""Verbs of a command that is kept: short, often asked for, and without anything that outlives them."""
_MAX_SHOWN = 300

Answer = Mapping[str, Any] | Failed | Unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One verb of ``engines.hosts.host`` with what it is told; ``follows`` are bytes that it reads after that."""

    verb: str
    told: Mapping[str, Any]
    limit_s: float
    follows: bytes = field(default=b"", repr=False)


class HostsClient:
    """Asks hosts as one user. ``folder`` is ours on each host, ``python`` the interpreter there (3.11 or newer)."""

    def __init__(self, access: Access, *, folder: str, python: str) -> None:
        self._access = access
        self._folder = folder
        self._python = python

    def ask(self, asks: Mapping[Host, Ask]) -> dict[Host, Answer]:
        """Ask each host its own, all at once. ``Failed`` is a host's own word, ``Unseen`` means it gave none."""
        answers = self._ask(asks)
        missing = [host for host, answer in answers.items() if answer is None]
        if missing:
            answers |= self._ship(missing)
            shipped = {host: asks[host] for host in missing if answers[host] is None}
            answers |= self._ask(shipped)
        return {host: _never_spoke(answer) for host, answer in answers.items()}

    def _ask(self, asks: Mapping[Host, Ask]) -> dict[Host, Answer | None]:
        target = f"{self._folder}/agent/{bundle.build().digest}"
        return self._run({host: self._command(host, ask, target) for host, ask in asks.items()})

    def _command(self, host: Host, ask: Ask, target: str) -> Command:
        stays = ask.verb in _KEPT
        told = {**ask.told, "folder": self._folder, "node": host.name, "verb": ask.verb}
        return Command(
            argv=(self._python, "-I", "-S", target, _STAY if stays else ask.verb),
            reads=_line(told) + ask.follows,
            limit_s=ask.limit_s,
            answer=bundle.MARK.encode() if stays else b"",
        )

    def _ship(self, hosts: Sequence[Host]) -> dict[Host, Answer | None]:
        """Bring the command to hosts that lack it; None for one that has it now."""
        made = bundle.build()
        log.info("shipping the agent (%d bytes) to %s", len(made.data), ", ".join(host.name for host in hosts))
        reads = _line({"folder": self._folder, "digest": made.digest}) + made.data
        argv = (self._python, "-I", "-S", "-c", bundle.INSTALL)
        with _SHIP:
            answers = self._run(dict.fromkeys(hosts, Command(argv=argv, reads=reads, limit_s=_SHIP_LIMIT_S)))
        return {host: None if isinstance(answer, Mapping) else _not_shipped(answer) for host, answer in answers.items()}

    def _run(self, commands: Mapping[Host, Command]) -> dict[Host, Answer | None]:
        outcomes = ssh.run({host.machine: command for host, command in commands.items()}, self._access)
        return {host: _answer(outcomes[host.machine]) for host in commands}


def _answer(outcome: Done | Unanswered) -> Answer | None:
    if isinstance(outcome, Unanswered):
        return Unseen(reason=outcome.reason)
    answer = answer_of(outcome.output)
    if answer is None and outcome.code == _NO_SUCH_COMMAND:
        return Failed(
            reason=f"its shell says: {outcome.errors[-_MAX_SHOWN:].strip()}; name a Python by option 'python'"
        )
    return answer


def _not_shipped(answer: Answer | None) -> Answer:
    if answer is None:
        return Failed(reason="its Python does not run: name one of 3.11 or newer by the engine's option 'python'")
    if isinstance(answer, Failed):
        return Failed(reason=f"the agent cannot be put there: {answer.reason}")
    assert isinstance(answer, Unseen)
    return answer


def _never_spoke(answer: Answer | None) -> Answer:
    if answer is None:
        return Failed(reason="the agent is there and says nothing: look at the host")
    return answer


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"
