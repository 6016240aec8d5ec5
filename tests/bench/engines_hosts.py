"""What a gang on eight real hosts costs and how fast its loss is noticed, on machines of their own (``ssh_hosts``).

``python -m tests.bench.engines_hosts`` measures these alone.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_llmsched import effect_points
from airflow_llmsched.agent import proc
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Watch
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import LaunchError
from airflow_llmsched.testing.engine_contract import HANGS, gang_of, submit
from tests.bench.rows import RESULTS, Row, conclude
from tests.support.hosts_engine import BEHAVE, HostsHarness
from tests.support.hosts_house import HostsHouse
from tests.support.local_house import TRAINER
from tests.support.ssh_hosts import SshHosts, ssh_hosts
from tests.support.waiting import wait_until

NUM_HOSTS = 8
RANKS_PER_HOST = 8
MAX_SKEW_S = 0.2
POLL_S = 1.0
LEASE_S = 30.0
_LIMIT_S = 240.0


def rows() -> list[Row]:
    """Return all figures."""
    with ssh_hosts(num_hosts=NUM_HOSTS) as machines:
        return [*launch_rows(machines), *loss_rows(machines)]


def launch_rows(machines: SshHosts) -> list[Row]:
    """Return how far apart 64 ranks begin, and what is left of them when one host does not start."""
    with _harness(machines, num_hosts=NUM_HOSTS, slots=RANKS_PER_HOST) as harness:
        gang = gang_of(harness, [HANGS] * (NUM_HOSTS * RANKS_PER_HOST))
        began_s = time.time()
        handle = submit(harness, gang)
        submit_s = time.time() - began_s
        wait_until(lambda: harness.num_live_ranks(handle) == len(gang.placement.slots), _LIMIT_S, poll_s=0.5)
        starts_s = sorted(proc.started_at_s(each) for each in harness.processes(handle) if _is_rank(each))
        harness.engine.stop(handle, grace_s=1.0)
    with _harness(machines, num_hosts=NUM_HOSTS, slots=RANKS_PER_HOST) as harness:
        gang = gang_of(harness, [HANGS] * (NUM_HOSTS * RANKS_PER_HOST))
        num_left = -1.0  # it was not refused
        there = harness.dir_on("h8", GangHandle(engine="hosts", key=gang.key, native_id=gang.key.name))

        def spoil(point: str, side: Side) -> None:
            if (point, side) == ("hosts.submit.start", Side.BEFORE):
                there.path.mkdir(parents=True)
                there.request.write_text("{}")  # nothing can be started from that

        effect_points.listen(spoil)
        try:
            submit(harness, gang)
        except LaunchError:
            num_left = float(len(harness.processes(harness.engine.find(gang.key.run)[0])))
        finally:
            effect_points.listen(None)
    return [
        Row(name="hosts: 64 ranks on 8 hosts begin within, s", value=starts_s[-1] - starts_s[0], below=MAX_SKEW_S),
        Row(name="hosts: submit of that gang, s", value=submit_s),
        Row(name="hosts: processes left when one host does not start", value=num_left, above=-1, below=1),
    ]


def loss_rows(machines: SshHosts) -> list[Row]:
    """Return how soon the loss of a host is decided upon, and how soon the next attempt is submitted.

    The clock begins when the host is lost: when the last of its processes is dead, or its cable is pulled.
    Of a silent host the ranks may be alive: its lease is awaited, and 15 s for clocks and killing (control.fencing),
    unless the option ``fence`` turns it off.
    """
    rebooted_s, again_s = _loss(machines, _rebooting, mend=lambda _: None)
    cut_s, awaited_s = _loss(machines, _cutting_off, mend=machines.join_again)
    _, fenced_s = _loss(machines, _cutting_off, mend=_turned_on(machines), fence=machines.fence)
    limit_s = POLL_S + 2.0
    return [
        Row(
            name="hosts: rebooted host, from its last process dead to our decision, s", value=rebooted_s, below=limit_s
        ),
        Row(name="hosts: rebooted host, from there to the next attempt submitted, s", value=again_s, below=15.0),
        Row(name="hosts: silent host, from its cable pulled to our decision, s", value=cut_s, below=limit_s),
        Row(name="hosts: silent host to the next attempt, host turned off by `fence`, s", value=fenced_s, below=15.0),
        Row(name=f"hosts: silent host to the next attempt, {LEASE_S:.0f} s lease awaited, s", value=awaited_s),
    ]


def _rebooting(machines: SshHosts, name: str) -> float:
    machines.power_off(name)
    dead_at_s = time.time()
    machines.power_on(name)
    return dead_at_s


def _cutting_off(machines: SshHosts, name: str) -> float:
    machines.cut_off(name)
    return time.time()


def _turned_on(machines: SshHosts) -> Callable[[str], None]:
    def mend(name: str) -> None:
        machines.power_off(name)
        machines.join_again(name)
        machines.power_on(name)

    return mend


def _loss(
    machines: SshHosts, lose: Callable[[SshHosts, str], float], mend: Callable[[str], None], **options: object
) -> tuple[float, float]:
    """Return how long after a host was lost, as ``lose`` says, its run decides, and submits its next attempt."""
    with tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        with _harness(machines, num_hosts=3, slots=1, silence_limit_s=1.0, **options) as harness:
            house = HostsHouse(Path(folder), harness, lease_s=LEASE_S)
            hold = Path(folder) / "hold"
            command = (sys.executable, str(TRAINER), "--steps", "20", "--hold-at", "7", "--hold", str(hold))
            outcome = house.driver(command=command, poll_interval_s=POLL_S).start()
            assert isinstance(outcome, Watch)
            driver = house.driver(command=command, poll_interval_s=POLL_S)
            watcher = threading.Thread(target=lambda: house.finish(driver))
            watcher.start()
            try:
                wait_until(lambda: 7 in house.steps(outcome.state.channel_root), _LIMIT_S)
                lost_at_s = lose(machines, "h2")
                decided_s = wait_until(lambda: _first(house, ev.FaultDetected, ev.GangEnded), _LIMIT_S) - lost_at_s
                again_s = wait_until(lambda: _later(house, lost_at_s), _LIMIT_S) - lost_at_s
            finally:
                mend("h2")
                hold.touch()
                watcher.join()
    return decided_s, again_s


def _first(house: HostsHouse, *kinds: type) -> float | None:
    return next((event.at_s for event in house.journal.read() if isinstance(event, kinds)), None)


def _later(house: HostsHouse, after_s: float) -> float | None:
    launches = (event.at_s for event in house.journal.read() if isinstance(event, ev.Launched))
    return next((at_s for at_s in launches if at_s > after_s), None)


def _is_rank(process: proc.Process) -> bool:
    argv = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return str(BEHAVE).encode() in argv and b"agent.rank" not in argv


@contextmanager
def _harness(machines: SshHosts, **options: object) -> Iterator[HostsHarness]:
    with tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        harness = HostsHarness(Path(folder), machines, **options)
        try:
            yield harness
        finally:
            harness.close()


def main() -> int:
    return conclude(rows(), title="gangs on bare hosts", output=RESULTS / "engines-hosts.json", about={})


if __name__ == "__main__":
    sys.exit(main())
