"""Real gangs on a local engine that nobody watches any more: healthy, speaking, or with hung node agents."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.engines.local.client import LocalClient


@contextmanager
def hung_agents(client: LocalClient, handle: GangHandle) -> Iterator[None]:
    """Stop the gang's supervisors in their tracks: they neither report nor mind their lease, and the ranks run on."""
    gang: GangDir = client.gang(handle.native_id)
    nodes = [part["node"] for part in client.request(handle.native_id)["body"]["nodes"]]
    supervisors = [supervisor for node in nodes if (supervisor := gang.node(node).supervisor()) is not None]
    assert len(supervisors) == len(nodes)
    for supervisor in supervisors:
        os.kill(supervisor.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for supervisor in supervisors:
            try:
                os.kill(supervisor.pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
