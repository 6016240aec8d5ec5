"""Real gangs whose agents reach control by presigned HTTP alone, with the store going away and coming back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.errors import LaunchError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.telemetry.http_channel import ObjectChannel
from tests.support.local_engine import LocalHarness
from tests.support.signed_store import SignedStore
from tests.support.waiting import wait_until

LIMIT_S = 90.0

TRAINER = """
import sys, time
sys.path.insert(0, {package!r})
from airflow_llmsched import agent
agent.ready()
step = 0
while not agent.stop_requested() and step < {num_steps}:
    step += 1
    time.sleep(0.05)
    agent.report(step=step, loss=1.0, tokens=8)
    print(step, agent.checkpoint_interval_s(), flush=True)
"""


class Site:
    """A local engine, and a store that its agents reach only through ``signed``."""

    def __init__(self, root: Path, signed: SignedStore, store: LocalStore) -> None:
        self.harness = LocalHarness(root / "site")
        self.signed = signed
        run = RunKey(f"ls-http-{os.getpid()}-{time.monotonic_ns() % 10**6}")
        self.key = AttemptKey(run=run, generation=1, attempt=1)
        self.channel = ObjectChannel(store, "ch", presigner=signed, links=root / "links")

    def launch(self, *, lease_s: float | None, num_steps: int = 10**6) -> GangHandle:
        slots = tuple(RankSlot(rank=rank, node=NodeId(f"n{rank}"), slot=0, local_rank=0) for rank in (0, 1))
        gang = GangSpec(
            key=self.key,
            placement=Placement(slots=slots),
            layout=ParallelLayout(dp=2),
            command=("x",),
            channel_root="s3://bucket/ch",
            launcher=Launcher.PLAIN,
            grace_s=1.0,
            flush_interval_s=0.1,
            lease_s=lease_s,
            channel_links=self.channel.prepare((NodeId("n0"), NodeId("n1")), at_s=time.time()),
        )
        package = str(Path(__file__).parents[2])
        gang = self.harness.run_python(gang, TRAINER.format(package=package, num_steps=num_steps))
        return self.harness.engine.submit(self.harness.engine.render(gang), key=self.key)

    def phase(self, handle: GangHandle) -> GangPhase:
        return self.harness.engine.poll([handle])[handle].phase

    def last_step(self) -> int:
        return max((step.step for report in read_all(self.channel) for step in report.steps), default=0)

    def said(self, handle: GangHandle) -> str:
        return self.harness.engine.log_tail(handle, rank=0, num_lines=5)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = LocalStore(str(tmp_path / "store"))
    with SignedStore(store) as signed:
        site = Site(tmp_path, signed, store)
        yield site
        site.harness.close()


def test_gang_reports_and_obeys_without_credentials_or_a_shared_folder(site: Site) -> None:
    handle = site.launch(lease_s=None)
    wait_until(lambda: site.last_step() >= 3, limit_s=LIMIT_S)
    site.channel.order_interval(interval_s=90.0)
    wait_until(lambda: "90.0" in site.said(handle), limit_s=LIMIT_S)
    site.channel.order_stop(reason="enough")
    wait_until(lambda: site.phase(handle) is GangPhase.SUCCEEDED, limit_s=LIMIT_S)
    reports = read_all(site.channel)
    assert {report.node for report in reports} == {"n0", "n1"}
    told = [step.step for report in reports for step in report.steps]
    assert told == list(range(1, len(told) + 1))
    assert str(told[-1]) in site.said(handle).splitlines()[-1]  # to the very last step


def test_no_process_of_the_gang_carries_a_url_in_arguments_environment_or_log(site: Site) -> None:
    handle = site.launch(lease_s=None)
    wait_until(lambda: site.last_step() >= 1, limit_s=LIMIT_S)
    for process in site.harness.processes(handle):
        for name in ("environ", "cmdline"):
            assert b"signature" not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    site.signed.refuse = 503
    folder = site.harness.client.gang(handle.native_id).path
    log = folder / "nodes" / "n0" / "supervisor.log"
    wait_until(lambda: "HTTP 503" in log.read_text(), limit_s=LIMIT_S)
    for path in folder.rglob("*"):
        assert not path.is_file() or b"signature" not in path.read_bytes(), path


def test_partition_longer_than_the_lease_fences_every_rank_and_its_end_brings_none_back(site: Site) -> None:
    handle = site.launch(lease_s=4.0)
    deadline_s = time.monotonic() + LIMIT_S
    while site.last_step() < 5:
        site.channel.renew(until_s=time.time() + 4.0)
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    site.signed.cut = True
    site.channel.renew(until_s=time.time() + 3600.0)  # control cannot know; the agents cannot read it
    wait_until(lambda: site.phase(handle).ended, limit_s=LIMIT_S)
    status = site.harness.engine.poll([handle])[handle]
    assert (status.phase, status.fault) == (GangPhase.LOST, FaultKind.GANG_LOST)
    assert "the lease ran out" in status.reason
    site.signed.cut = False
    assert site.harness.left(handle) == []


def test_partition_shorter_than_the_lease_costs_no_step_and_no_report(site: Site) -> None:
    handle = site.launch(lease_s=60.0, num_steps=200)
    wait_until(lambda: site.last_step() >= 3, limit_s=LIMIT_S)
    site.signed.cut = True
    before = site.last_step()
    wait_until(lambda: int(site.said(handle).splitlines()[-1].split()[0]) >= before + 40, limit_s=LIMIT_S)
    site.signed.cut = False
    wait_until(lambda: site.phase(handle) is GangPhase.SUCCEEDED, limit_s=LIMIT_S)
    reports = read_all(site.channel)
    assert [step.step for report in reports for step in report.steps] == list(range(1, 201))
    assert max(report.num_deferred for report in reports) >= 3  # it says what it gathered
    assert all(report.num_dropped == 0 for report in reports)


def test_slow_store_stalls_no_rank(site: Site) -> None:
    site.signed.slow_s = 3.0
    handle = site.launch(lease_s=None)
    wait_until(lambda: len(site.said(handle).splitlines()) >= 5, limit_s=LIMIT_S)
    first, start_s = int(site.said(handle).splitlines()[-1].split()[0]), time.monotonic()
    wait_until(lambda: int(site.said(handle).splitlines()[-1].split()[0]) >= first + 40, limit_s=LIMIT_S)
    assert time.monotonic() - start_s < 12.0  # 40 steps of 0.05 s: the store's 3 s per request are not among them
    site.signed.slow_s = 0.0


def test_missing_grant_starts_nothing_and_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = site.channel.prepare

    def prepare_one(nodes: Sequence[NodeId], *, at_s: float) -> str | None:
        links = prepare(nodes, at_s=at_s)
        (Path(links or "") / "n1.json").unlink()
        return links

    monkeypatch.setattr(site.channel, "prepare", prepare_one)
    with pytest.raises(LaunchError, match="grant of URLs of node n1 is missing"):
        site.launch(lease_s=None)
    assert proc.marked({"LLMSCHED_ATTEMPT_NAME": site.key.name}) == []
