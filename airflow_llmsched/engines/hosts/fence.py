"""Proves that hosts which nobody sees are off: by a command of the operator's, such as one that asks a BMC.

What ran on a machine that has been off since is dead, so a proof spares a successor the wait for its lease. It counts
only for attempts of which every host had answered that it went: nothing of those can start there later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airflow_llmsched.domain.gang import GangStatus
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.hosts.ledger import Ledger
from airflow_llmsched.errors import SpecError

_RUN = EffectPoint("hosts.fence.run")

log = logging.getLogger(__name__)

HOST = "{host}"
MAX_LIMIT_S = 600.0
_MAX_AT_ONCE = 16
_KILL_S = 2.0
_PASSED_ON = ("PATH", "HOME", "LANG")
"""Of our environment: Airflow's own settings hold its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceCommand:
    """An argument list, run without a shell, that exits 0 once ``{host}`` is proven off; anything else proves nothing.

    It may turn the host off. What it has not said within ``limit_s`` it does not say: it is killed.
    """

    argv: tuple[str, ...]
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for what cannot be such a command."""
        if not self.argv or not self.argv[0].startswith("/") or not any(HOST in each for each in self.argv[1:]):
            hint = f"must be a list of texts: the absolute path of a program, and arguments of which one holds {HOST}"
            raise SpecError(path="fence", value=list(self.argv), hint=hint)
        if not 0 < self.limit_s <= MAX_LIMIT_S:
            hint = f"must be above 0 s and at most {MAX_LIMIT_S:.0f} s"
            raise SpecError(path="fence_limit_s", value=self.limit_s, hint=hint)

    @_RUN
    def prove(self, host: NodeId) -> bool:
        """Run it, and return whether the host is proven off. Never raises: what cannot be run proves nothing."""
        argv = [each.replace(HOST, host) for each in self.argv]
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        try:
            running = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("host %s is not fenced: %s: %s", host, argv[0], error.strerror)
            return False
        try:
            code = running.wait(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # What runs as another user (``sudo``) may not be killed: nobody waits for it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)  # it may have left others behind
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=_KILL_S)
        told = f"did not end within {self.limit_s:g} s" if code is None else f"ended with code {code}"
        log.log(logging.INFO if code == 0 else logging.WARNING, "fencing host %s: %s %s", host, argv[0], told)
        return code == 0


class Fence:
    """Proves hosts off by ``command`` and remembers it in the ledger; without a command it proves none.

    Only ``hosts``, those that the engine has now: one that was taken from it may be somebody else's by now.
    """

    def __init__(self, command: FenceCommand | None, ledger: Ledger, *, hosts: Collection[NodeId]) -> None:
        self._command = command
        self._ledger = ledger
        self._hosts = hosts

    def prove(self, name: str, status: GangStatus) -> frozenset[NodeId]:
        """Return the nodes of an ended attempt on which nothing of it can be alive, fencing those that are unseen.

        Raises ``CouldNotLookError`` when another has held one of the hosts' locks for too long.
        """
        hidden = list(status.unconfirmed_nodes)
        confirmed = frozenset(node.node for node in status.nodes) - set(hidden)
        if not hidden or self._command is None or not self._ledger.has_gone(name):
            return confirmed
        with ThreadPoolExecutor(max_workers=min(len(hidden), _MAX_AT_ONCE)) as pool:
            proven = list(pool.map(lambda node: self._is_off(name, node), hidden))
        return confirmed | {node for node, is_off in zip(hidden, proven, strict=True) if is_off}

    def _is_off(self, name: str, node: NodeId) -> bool:
        """Prove it once for all attempts that it concerns: the host may be on again, and another's, a moment later."""
        assert self._command is not None
        with self._ledger.fencing(node):
            if self._ledger.off_at_s(name, node) is not None:
                return True
            if node not in self._hosts:
                return False
            concerned = [name, *self._others_on(node, but=name)]
            if not self._command.prove(node):
                return False
            self._ledger.note_off(concerned, node)
            return True

    def _others_on(self, node: NodeId, *, but: str) -> Iterable[str]:
        names: Sequence[str] = [each for each in self._ledger.names() if each != but]
        going = [each for each in names if not self._ledger.abandoned(each) and self._ledger.has_gone(each)]
        return [each for each in going if self._ledger.end(each) is None and node in self._ledger.nodes(each)]
