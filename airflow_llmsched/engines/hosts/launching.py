"""Starts a gang's supervisors on all of its hosts or on none, and ends what there is of one on its hosts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_request import held_slots
from airflow_llmsched.engines.hosts.client import Answer, Ask, HostsClient
from airflow_llmsched.engines.hosts.inventory import Host
from airflow_llmsched.engines.hosts.ledger import Ledger
from airflow_llmsched.engines.hosts.words import Failed, Unseen
from airflow_llmsched.errors import LaunchError

_START = EffectPoint("hosts.submit.start")
_GO = EffectPoint("hosts.submit.go")
_STOP = EffectPoint("hosts.stop")

log = logging.getLogger(__name__)

_START_LIMIT_S = 60.0
_GO_LIMIT_S = 30.0
_KILL_LIMIT_S = 15.0
_GIVE_UP_GRACE_S = 1.0


class Launching:
    """Launches and stops attempts of which there is a record in the ledger.

    ``host_of`` returns a node's host, None for one that the engine has no longer; ``code`` are folders on every host
    that ranks import from.
    """

    def __init__(
        self,
        client: HostsClient,
        ledger: Ledger,
        host_of: Callable[[NodeId], Host | None],
        *,
        code: Callable[[Sequence[Host]], tuple[str, ...]],
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._host_of = host_of
        self._code = code

    def launch(self, name: str) -> None:
        """Start every host's supervisor, then let them go; or, when one does not start, none. Safe to repeat.

        A submitter that died half way leaves an attempt that is not decided; whoever submits it again finishes it.
        Raises ``LaunchError``, ``CouldNotLookError``.
        """
        with self._ledger.launching(name):
            if self._ledger.is_decided(name):
                return
            hosts = self._hosts(name)
            code = self._brought(name, hosts)
            if len(hosts) == 1:
                self._ledger.going(name)  # one that has nobody to wait for goes when it is started
                if self._ledger.is_given_up(name):  # by one who may have seen that nothing was going yet
                    return
            with _START:
                answers = self._client.ask(self._starts(name, hosts, code))
            self._go_on_or_give_up(name, hosts, answers, word="claim")
            if self._ledger.is_given_up(name):
                return
            where = self._where(answers[hosts[0]], hosts[0])
            self._ledger.going(name)
            if self._ledger.is_given_up(name):
                return
            with _GO:
                answers = self._client.ask(
                    {host: Ask(verb="go", told={"name": name, "where": where}, limit_s=_GO_LIMIT_S) for host in hosts}
                )
            self._go_on_or_give_up(name, hosts, answers, word="went")
            self._ledger.gone(name, where)

    def stop(self, name: str, nodes: Sequence[NodeId], *, grace_s: float) -> dict[NodeId, Answer]:
        """End what there is of an attempt on its hosts, all at once, and return what each answered."""
        hosts = {node: self._host_of(node) for node in nodes}
        ask = Ask(verb="stop", told={"name": name, "grace_s": grace_s}, limit_s=grace_s + _KILL_LIMIT_S)
        with _STOP:
            answers = self._client.ask({host: ask for host in hosts.values() if host is not None and not host.is_off})
        off = {host: Unseen(reason="it is off") for host in hosts.values() if host is not None and host.is_off}
        return {
            node: Unseen(reason=not_listed(node)) if host is None else {**answers, **off}[host]
            for node, host in hosts.items()
        }

    def _hosts(self, name: str) -> list[Host]:
        found = {node: self._host_of(node) for node in self._ledger.nodes(name)}
        gone = [node for node, host in found.items() if host is None]
        if gone:
            self._give_up(name, node=gone[0], reason="; ".join(not_listed(node) for node in gone))
        return [host for host in found.values() if host is not None]

    def _brought(self, name: str, hosts: Sequence[Host]) -> tuple[str, ...]:
        try:
            return self._code(hosts)
        except LaunchError as error:
            self._give_up(name, node=hosts[0].name, reason=str(error))
            raise

    def _starts(self, name: str, hosts: Sequence[Host], code: tuple[str, ...]) -> dict[Host, Ask]:
        body = self._ledger.request(name)["body"]
        slots = {part["node"]: held_slots(part) for part in body["nodes"]}
        told = {"name": name, "body": body, "token": self._ledger.token(name), "code": code}
        return {
            host: Ask(
                verb="start",
                told={**told, "slots": slots[host.name], "grant": _grant(body, host.name), "cloud": host.cloud},
                limit_s=_START_LIMIT_S,
            )
            for host in hosts
        }

    def _where(self, answer: Answer, host: Host) -> dict[str, Any]:
        assert isinstance(answer, Mapping)
        claim = answer["claim"]
        return {
            "meeting": {"host": host.address, "port": claim["port"]},
            "peers": {"host": host.address, "port": claim["peers_port"]},
        }

    def _go_on_or_give_up(self, name: str, hosts: Sequence[Host], answers: Mapping[Host, Answer], *, word: str) -> None:
        """Return when every host answered with ``word``; else leave nothing anywhere."""
        troubles = {host: _trouble(answers[host], word=word) for host in hosts}
        first = next((host for host in hosts if troubles[host]), None)
        if first is None or self._ledger.is_given_up(name):
            return  # whoever gave it up also ends what has started
        reason = "; ".join(f"host {host.name}: {trouble}" for host, trouble in troubles.items() if trouble)
        self._give_up(name, node=first.name, reason=reason)

    def _give_up(self, name: str, *, node: NodeId, reason: str) -> None:
        self._ledger.give_up(name, node=node, reason=reason)
        answers = self.stop(name, self._ledger.nodes(name), grace_s=_GIVE_UP_GRACE_S)
        left = [f"{node} ({answer.reason})" for node, answer in answers.items() if not isinstance(answer, Mapping)]
        rest = "nothing of it is left running"
        if left:
            rest = f"that nothing of it is left running could not be confirmed on {', '.join(left)}"
        raise LaunchError(f"attempt {name}: {reason}; {rest}")


def not_listed(node: NodeId) -> str:
    """Say that a node's host is not among the engine's any more."""
    return f"host {node} is no longer among the engine's hosts"


def _trouble(answer: Answer, *, word: str) -> str:
    if isinstance(answer, Unseen | Failed):
        return answer.reason
    if answer.get(word):
        return ""
    if answer.get("taken"):
        return f"slots {answer['taken']} are in use by another gang"
    if answer.get("abandoned") or answer.get("went") is False:
        return "the attempt was given up there"
    return "processes of an attempt whose folder was deleted are alive there"


def _grant(body: Mapping[str, Any], node: str) -> dict[str, Any] | None:
    """Return what lets this node's agent into the channel: its own, and nobody else's."""
    links = body["channel_links"]
    return None if links is None else read_json(Path(links) / f"{node}.json")
