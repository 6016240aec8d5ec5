"""Looks at many attempts on many hosts: by one command per host and cycle, all at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_llmsched.domain.gang import GangPhase, GangStatus, abandoned_status
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.hosts.client import Answer, Ask, HostsClient
from airflow_llmsched.engines.hosts.inventory import Host
from airflow_llmsched.engines.hosts.launching import not_listed
from airflow_llmsched.engines.hosts.ledger import Ledger
from airflow_llmsched.engines.hosts.states import Asked, status_of
from airflow_llmsched.engines.hosts.words import Failed, Gone, Off, Part, Seen, Sight, Survey, Unseen, survey_of
from airflow_llmsched.errors import CouldNotLookError, InternalError

log = logging.getLogger(__name__)

UseUp = Callable[[str, Sequence[NodeId]], Mapping[NodeId, Answer]]
Prove = Callable[[str, GangStatus], frozenset[NodeId]]


class Looking:
    """Sees hosts and attempts. A host that answers nothing within ``limit_s`` cannot be seen.

    ``use_up`` sees to it that nothing of an attempt comes on hosts that have nothing of it (``Launching.stop``).
    """

    def __init__(
        self, client: HostsClient, ledger: Ledger, hosts: Mapping[NodeId, Host], *, limit_s: float, use_up: UseUp
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._hosts = hosts
        self._limit_s = limit_s
        self._use_up = use_up

    def survey(self, names: Mapping[Host, Sequence[str]], **told: Any) -> dict[NodeId, Seen]:
        """Ask each host about its names and whatever else (``engines.hosts.host.survey``), but those that are off.

        Raises ``CouldNotLookError`` when no host of the engine answers: then it is we who see nothing. It is not where
        all may still be coming up, and are asked for no attempt: there can be none on them yet.
        """
        off = {host.name: Off(reason=f"host {host.name} is off") for host in names if host.is_off}
        asked = {host: each for host, each in names.items() if not host.is_off}
        if not asked:
            return {**off}
        seen = self._ask(asked, **told)
        if all(isinstance(each, Unseen) for each in seen.values()) and not _all_join(asked):
            others = {host: () for host in self._hosts.values() if host not in names and not host.is_off}
            if all(isinstance(each, Unseen) for each in self._ask(others).values()):
                reasons = "; ".join(each.reason for each in seen.values() if isinstance(each, Unseen))
                raise CouldNotLookError(f"hosts engine: no host answers: {reasons}")
        return {**off, **seen}

    def _ask(self, names: Mapping[Host, Sequence[str]], **told: Any) -> dict[NodeId, Survey | Unseen]:
        asks = {
            host: Ask(verb="survey", told={"names": list(each), **told}, limit_s=self._limit_s)
            for host, each in names.items()
        }
        seen: dict[NodeId, Survey | Unseen] = {}
        for host, answer in self._client.ask(asks).items():
            said = survey_of(answer, node=host.name) if isinstance(answer, Mapping) else answer
            if isinstance(said, Failed):
                said = Unseen(reason=f"host {host.name}: {said.reason}")
            if isinstance(said, Unseen) and _joins(host):
                said = Unseen(reason=f"it may still be coming up: {said.reason}")
            seen[host.name] = said
        return seen

    def everywhere(self, names: Sequence[str] = (), **told: Any) -> dict[NodeId, Seen]:
        """Ask all hosts. Raises ``CouldNotLookError`` when none answers."""
        return self.survey(dict.fromkeys(self._hosts.values(), names), **told)

    def statuses(self, names: Iterable[str], *, now_s: float) -> dict[str, GangStatus | CouldNotLookError]:
        """Return each attempt's status, or why it alone has none. Raises ``CouldNotLookError`` for all at once."""
        statuses: dict[str, GangStatus | CouldNotLookError] = {}
        recorded: dict[str, tuple[NodeId, ...]] = {}
        unknown: list[str] = []
        for name in names:
            known = self._known(name, now_s=now_s)
            if known is not None:
                statuses[name] = known
            elif self._ledger.exists(name):
                recorded[name] = self._ledger.nodes(name)
            else:
                unknown.append(name)
        wanted = self._wanted(recorded, unknown)
        seen = self.survey(wanted) if wanted else {}
        for name, nodes in recorded.items():
            statuses[name] = _judged(name, partial(self._recorded, name, nodes, seen, now_s))
        for name in unknown:
            statuses[name] = _judged(name, partial(self._unrecorded, name, seen, now_s))
        return statuses

    def confirmed(self, name: str, *, prove: Prove, now_s: float) -> frozenset[NodeId]:
        """Return the nodes of an attempt on record on which nothing of it can be alive; none while it has not ended.

        ``prove`` says which they are, and may have hosts turned off that this look did not see: it is judged by what
        was seen before that, and remembered. Raises ``CouldNotLookError``.
        """
        known = self._known(name, now_s=now_s)
        if known is not None:
            return prove(name, known)
        nodes = self._ledger.nodes(name)
        seen = self.survey(self._wanted({name: nodes}, []))
        status = self._recorded(name, nodes, seen, now_s)
        if not status.phase.ended:
            return frozenset()
        proven = prove(name, status)
        if proven > frozenset(nodes) - set(status.unconfirmed_nodes):
            self._recorded(name, nodes, seen, now_s)
        return proven

    def _known(self, name: str, *, now_s: float) -> GangStatus | None:
        """Return what needs no look at a host."""
        ended = self._ledger.end(name)
        if ended is not None:
            return ended
        abandoned = self._ledger.abandoned(name)
        return None if abandoned is None else abandoned_status(observed_at_s=now_s, at_s=abandoned["at_s"])

    def _wanted(self, recorded: Mapping[str, Sequence[NodeId]], unknown: Sequence[str]) -> dict[Host, list[str]]:
        wanted: dict[Host, list[str]] = {}
        for name, nodes in recorded.items():
            for node in nodes:
                if node in self._hosts:
                    wanted.setdefault(self._hosts[node], []).append(name)
        if recorded and not wanted:  # all of their hosts are gone from the list: do we see any at all?
            wanted = {host: [] for host in self._hosts.values()}
        for host in self._hosts.values() if unknown else ():
            wanted.setdefault(host, []).extend(unknown)
        return wanted

    def _recorded(self, name: str, nodes: Sequence[NodeId], seen: Mapping[NodeId, Seen], now_s: float) -> GangStatus:
        sights = {node: self._sight(name, node, seen) for node in nodes}
        status = status_of(self._ledger.asked(name), sights, now_s=now_s)
        if status.phase.ended and not status.unconfirmed_nodes:
            self._keep_away(name, sights)
            self._ledger.note_end(name, status)
        return status

    def _keep_away(self, name: str, sights: Mapping[NodeId, Sight]) -> None:
        """Let nothing start late of an attempt that is over: its submitter may stand still before it reaches a host.

        Raises ``CouldNotLookError`` for a host that does not answer: nothing is concluded before it has.
        """
        absent = [node for node, sight in sights.items() if isinstance(sight, Gone) and not sight.for_good]
        for node, answer in self._use_up(name, absent).items() if absent else ():
            if isinstance(answer, Failed | Unseen):
                raise CouldNotLookError(f"attempt {name} may yet start on host {node}: {answer.reason}; look again")

    def _sight(self, name: str, node: NodeId, seen: Mapping[NodeId, Seen]) -> Sight:
        survey = seen.get(node, Unseen(reason=not_listed(node)))
        if isinstance(survey, Survey):
            return survey.sights.get(name, Unseen(reason="it was not asked"))
        off_at_s = self._ledger.off_at_s(name, node)
        return survey if off_at_s is None else Off(reason=f"host {node} was turned off", at_s=off_at_s)

    def _unrecorded(self, name: str, seen: Mapping[NodeId, Seen], now_s: float) -> GangStatus:
        """Judge an attempt that hosts have and we have no record of: another deployment's, or our records were lost."""
        parts = parts_of(name, seen)
        if not parts:
            unseen = [each.reason for each in seen.values() if isinstance(each, Unseen)]
            if unseen:
                raise CouldNotLookError(f"attempt {name} is not on record, and may be on a host unseen: {unseen[0]}")
            reason = f"there is no attempt {name} on this engine"
            return GangStatus(phase=GangPhase.LOST, observed_at_s=now_s, fault=FaultKind.GANG_LOST, reason=reason)
        whose = next(iter(parts.values())).whose
        asked = Asked(nodes=whose.nodes, submitted_at_s=whose.submitted_at_s, start_limit_s=0.0)
        sights = {node: parts.get(node) or self._absent(name, node, seen) for node in whose.nodes}
        return status_of(asked, sights, now_s=now_s)

    def _absent(self, name: str, node: NodeId, seen: Mapping[NodeId, Seen]) -> Sight:
        sight = self._sight(name, node, seen)
        return sight if isinstance(sight, Unseen | Off) else Gone()


def parts_of(name: str, seen: Mapping[NodeId, Seen]) -> dict[NodeId, Part]:
    """Return what hosts that answered have of one attempt."""
    sights = {node: each.sights.get(name) for node, each in seen.items() if isinstance(each, Survey)}
    return {node: sight for node, sight in sights.items() if isinstance(sight, Part)}


def _judged(name: str, judge: Callable[[], GangStatus]) -> GangStatus | CouldNotLookError:
    try:
        return judge()
    except CouldNotLookError as error:
        log.warning("%s: %s", name, error)
        return error
    except (InternalError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: a host's records make no sense: %s", name, error)
        return CouldNotLookError(f"attempt {name}: the records of a host make no sense: {error}")


def _all_join(names: Mapping[Host, Sequence[str]]) -> bool:
    return all(_joins(host) and not asked for host, asked in names.items())


def _joins(host: Host) -> bool:
    return time.time() < host.joins_until_s
