"""A worker dies at every effect of the hosts engine, and another goes on: one gang, and nothing left of it."""

from __future__ import annotations

import ast
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched import effect_points
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.hosts.engine import HostsEngine
from airflow_llmsched.testing.engine_contract import HANGS, SETTLE_S, ended, gang_of, only, poll
from tests.support.hosts_engine import HostsHarness
from tests.support.source import modules, tree

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

BEFORE_THE_GANG = ("hosts.submit.sign", "hosts.ledger.token", "hosts.files.send", "hosts.ship", "hosts.submit.start")
AFTER_ITS_START = ("hosts.ledger.going", "hosts.submit.go", "hosts.ledger.gone")
AT_ITS_END = ("hosts.ledger.stop", "hosts.stop", "hosts.ledger.end")
WHEN_IT_FAILS = ("hosts.ledger.abort",)
OF_A_FENCE = ("hosts.fence.run", "hosts.ledger.off")
"""Where one dies at each in ``tests/unit/engines/hosts/test_fence.py``: no host has a part in them."""


class KilledError(BaseException):
    """The worker is gone."""


@contextmanager
def dying(point: str, side: Side, *, at_start: Callable[[], object] | None = None) -> Iterator[list[str]]:
    """Die at the first passage of an effect; yields where it came to that. ``at_start`` comes before hosts start."""
    died: list[str] = []

    def listener(name: str, seen: Side) -> None:
        if at_start is not None and (name, seen) == ("hosts.submit.start", Side.BEFORE):
            at_start()
        if (name, seen) == (point, side) and not died:
            died.append(name)
            raise KilledError

    effect_points.listen(listener)
    try:
        yield died
    finally:
        effect_points.listen(None)


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    """Room for a gang of two hosts for each death."""
    code = tmp_path / "code"
    code.mkdir()
    harness = HostsHarness(tmp_path, machines, slots=32, code=[str(code)], silence_limit_s=2.0)
    yield harness
    harness.close()


def gangs(harness: HostsHarness, num_gangs: int) -> list[GangSpec]:
    """Gangs of a rank on each of two hosts, each with slots of its own."""
    made = []
    for index in range(num_gangs):
        gang = gang_of(harness, [HANGS] * 2, grace_s=0.5)
        places = [RankSlot(rank=rank, node=NodeId(f"h{rank + 1}"), slot=index, local_rank=0) for rank in range(2)]
        made.append(replace(gang, placement=Placement(slots=tuple(places)), start_limit_s=120.0))
    return made


def submitted(engine: HostsEngine, gang: GangSpec) -> GangHandle:
    return engine.submit(engine.render(gang), key=gang.key)


def die_at(point: str, side: Side, call: Callable[[], object]) -> None:
    with dying(point, side) as died, pytest.raises(KilledError):
        call()
    assert died == [point]


def all_at_once(harness: HostsHarness, call: Callable[[GangHandle], object], handles: list[GangHandle]) -> None:
    harness.at_once([partial(call, handle) for handle in handles])


def wait_for_all(harness: HostsHarness, handles: list[GangHandle], *phases: GangPhase) -> None:
    harness.advance_until(
        lambda: all(status.phase in phases for status in harness.engine.poll(handles).values()), SETTLE_S
    )


def test_worker_that_dies_while_it_submits_leaves_what_another_completes(harness: HostsHarness) -> None:
    deaths = [(point, Side.BEFORE) for point in (*BEFORE_THE_GANG, *AFTER_ITS_START)]
    deaths.append((AFTER_ITS_START[-1], Side.AFTER))  # what comes after any other comes before the next
    asked = gangs(harness, len(deaths))
    for (point, side), gang in zip(deaths, asked, strict=True):
        (Path(harness.options["code"][0]) / "module.py").write_text(secrets.token_hex())  # code that no host has yet
        if point == "hosts.ship":
            harness.forget_agent()
        die_at(point, side, partial(submitted, harness.engine, gang))
    engine = harness.reopened()
    handles = [submitted(engine, gang) for gang in asked]
    assert [only(engine.find(gang.key.run)) for gang in asked] == handles
    wait_for_all(harness, handles, GangPhase.RUNNING)
    assert [harness.num_live_ranks(handle) for handle in handles] == [2] * len(handles)
    all_at_once(harness, partial(engine.stop, grace_s=0.5), handles)
    wait_for_all(harness, handles, GangPhase.STOPPED)
    assert [process for handle in handles for process in harness.processes(handle)] == []


def test_worker_that_dies_while_it_stops_a_gang_leaves_what_another_stops(harness: HostsHarness) -> None:
    deaths = [(point, Side.BEFORE) for point in AT_ITS_END]
    handles = [submitted(harness.engine, gang) for gang in gangs(harness, len(deaths))]
    for (point, side), handle in zip(deaths, handles, strict=True):

        def end(handle: GangHandle = handle) -> None:
            harness.engine.stop(handle, grace_s=0.5)
            ended(harness, handle)

        die_at(point, side, end)
    engine = harness.reopened()
    all_at_once(harness, partial(engine.stop, grace_s=0.5), handles)
    wait_for_all(harness, handles, GangPhase.STOPPED)
    assert [process for handle in handles for process in harness.processes(handle)] == []


def test_worker_that_dies_while_it_gives_up_leaves_what_another_ends(harness: HostsHarness) -> None:
    deaths = [(point, side) for point in WHEN_IT_FAILS for side in Side]
    for (point, side), gang in zip(deaths, gangs(harness, len(deaths)), strict=True):
        handle = GangHandle(engine="hosts", key=gang.key, native_id=gang.key.name)
        there = harness.dir_on("h2", handle)

        def spoil(there: GangDir = there) -> None:
            there.path.mkdir(parents=True)
            there.request.write_text("{}")

        with dying(point, side, at_start=spoil) as died, pytest.raises(KilledError):
            submitted(harness.engine, gang)
        assert died == [point]
        shutil.rmtree(there.path)
        harness.reopened().stop(handle, grace_s=0.5)
        assert poll(harness, handle).phase.ended
        assert harness.processes(handle) == []


def test_every_effect_of_the_engine_is_among_them() -> None:
    made = {
        ast.literal_eval(node.value.args[0])
        for module in modules()
        if module.is_relative_to("airflow_llmsched/engines/hosts")
        for node in tree(module).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) == "EffectPoint"
    }
    assert made == {*BEFORE_THE_GANG, *AFTER_ITS_START, *AT_ITS_END, *WHEN_IT_FAILS, *OF_A_FENCE}
