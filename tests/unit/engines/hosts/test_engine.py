from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llmsched import codec, registry
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, NodeTerms
from airflow_llmsched.engines.hosts.engine import HostsEngine
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.testing.engine_contract import HANGS, attempt_key, ended, gang_of, poll, running
from tests.support.hosts_engine import HostsHarness
from tests.support.source import ROOT
from tests.support.wirings import TWO_SOCKETS

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

OPTIONS: dict[str, Any] = {
    "root": "/r",
    "hosts": [{"name": "h1", "address": "10.0.0.1", "slots": 2}],
    "user": "trainer",
    "key": "/k",
    "known_hosts": "/h",
}


def test_engine_is_registered_under_its_name() -> None:
    assert registry.load(registry.AdapterGroup.ENGINES, HostsEngine.name) is HostsEngine


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("root", "relative"),
        ("folder", "~/x"),
        ("key", "id_ed25519"),
        ("known_hosts", "known"),
        ("user", ""),
        ("hosts", [{"name": "h1"}]),
        ("levels", ["zone", "rack"]),
        ("levels", "zone"),
        ("scale_up_level", "rack"),
        ("network", [{}]),
        ("network", [{"level": "rack", "bandwidth_bytes_per_s": 5e10}]),
        ("fabric", {"rail": 8}),
        ("wirings", {"h100": "h100.topo"}),
        ("code", "/srv/train"),
        ("silence_limit_s", 0.0),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, value: Any) -> None:
    with pytest.raises(SpecError):
        HostsEngine(**{**OPTIONS, option: value})


def test_what_is_known_of_the_network_is_told_with_the_hosts(tmp_path: Path) -> None:
    links = [{"level": "rack", "bandwidth_bytes_per_s": 5e10, "measured": True}]
    known = {"levels": ["zone", "rack"], "scale_up_level": "rack", "switches_reduce": True, "network": links}
    tree = HostsEngine(**{**OPTIONS, "root": str(tmp_path), "hosts": [], **known}).topology()
    assert (tree.levels, tree.scale_up_level, tree.switches_reduce) == (("zone", "rack"), "rack", True)
    assert tree.network == (NetworkLevel(level="rack", bandwidth_bytes_per_s=5e10, is_measured=True),)


def test_what_the_network_has_as_a_whole_and_what_joins_devices_is_told_with_the_hosts(tmp_path: Path) -> None:
    file = tmp_path / "h100.topo"
    file.write_text(TWO_SOCKETS, encoding="utf-8")
    said = {"fabric": {"rails": 8, "transport": "dpu", "traffic_class": 106}, "wirings": {"h100": str(file)}}
    engine = HostsEngine(**{**OPTIONS, "root": str(tmp_path), "hosts": [], **said})
    tree = engine.topology()
    assert tree.facts == NetworkFacts(num_rails=8, transport=Transport.DPU, traffic_class=106)
    assert [gpu.numa_index for gpu in tree.wirings["h100"].gpus] == [0, 1, 0, 1]
    file.unlink()
    with pytest.raises(CouldNotLookError, match=r"h100\.topo"):
        engine.topology()


def test_what_sets_a_host_apart_is_told_with_it(tmp_path: Path) -> None:
    host = {"name": "h1", "address": "10.0.0.1", "slots": 8, "off": True, "usd_per_hour": 3, "data": ["/data"]}
    (node,) = HostsEngine(**{**OPTIONS, "root": str(tmp_path), "hosts": [host]}).topology().nodes
    assert node.terms == NodeTerms(usd_per_hour=3.0, data=("/data",))


def test_handle_that_points_elsewhere_touches_nothing(tmp_path: Path) -> None:
    engine = HostsEngine(**{**OPTIONS, "root": str(tmp_path / "engine")})
    for native_id in ("../../etc", "", "a b"):
        handle = GangHandle(engine="hosts", key=attempt_key(), native_id=native_id)
        engine.stop(handle, grace_s=0.0)
        assert engine.log_tail(handle, rank=0, num_lines=5) == ""
    assert not (tmp_path / "engine").exists()


def test_abandoning_asks_no_host(tmp_path: Path) -> None:
    engine = HostsEngine(**{**OPTIONS, "root": str(tmp_path / "engine")})
    key = attempt_key()
    assert engine.abandon(key)
    handle = GangHandle(engine="hosts", key=key, native_id=key.name)
    assert engine.poll([handle])[handle].phase is GangPhase.STOPPED


SUBMIT = """
import json, sys
from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.engines.hosts.engine import HostsEngine
told = json.load(sys.stdin)
engine, gang = HostsEngine(**told["options"]), codec.from_plain(GangSpec, told["gang"])
print(json.dumps(codec.to_plain(engine.submit(engine.render(gang), key=gang.key))))
"""


@pytest.mark.server
def test_gang_of_a_process_that_is_gone_is_adopted_by_another(tmp_path: Path, machines: SshHosts) -> None:
    harness = HostsHarness(tmp_path, machines, num_hosts=8)
    try:
        gang = gang_of(harness, [HANGS] * 16)
        told = json.dumps({"options": harness.options, "gang": codec.to_plain(gang)})
        done = subprocess.run(
            [sys.executable, "-c", SUBMIT],
            input=told,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=100,
            check=True,
        )
        handle = codec.from_plain(GangHandle, json.loads(done.stdout))
        running(harness, handle)
        assert list(harness.engine.find(gang.key.run)) == [handle]
        assert [each.handle for each in harness.engine.find_all()] == [handle]
        assert harness.num_live_ranks(handle) == 16
        harness.engine.stop(handle, grace_s=1.0)
        assert ended(harness, handle).phase is GangPhase.STOPPED
        assert harness.processes(handle) == []
        assert poll(harness, handle).unconfirmed_nodes == ()
    finally:
        harness.close()
