from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, NodeTerms
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs import topology_file
from airflow_llmsched.specs.topology_file import loads

SMALL = """\
version: 1
levels: [block, rack]
scale_up_level: rack
links:
  - {level: block, bandwidth: 200 Gbit/s, measured: true}
  - {bandwidth: 10 GB/s}
nodes:
  - names: n[01-08]
    path: [b1, "r[1-2]"]
    shape: dgx-h100
    free: 6
  - names: m1
    path: [b1, "a b/c"]
    shape: own
    slots: 2
unusable:
  - {names: "n[02,08]", reason: broken fan}
"""


def test_nodes_are_dealt_out_to_domains_in_their_order() -> None:
    tree = loads(SMALL)
    assert [len(nodes) for nodes in tree.domains("rack").values()] == [1, 4, 4]
    found = {node.id: node for node in tree.nodes}
    assert [found[name].path for name in ("n01", "n04", "n05", "m1")] == [
        ("b1", "r1"),
        ("b1", "r1"),
        ("b1", "r2"),
        ("b1", "a b/c"),
    ]
    assert [(found[name].num_slots, found[name].num_free_slots) for name in ("n01", "m1")] == [(8, 6), (2, 2)]
    assert {node.id for node in tree.nodes if node.unusable_reason == "broken fan"} == {"n02", "n08"}


def test_links_have_their_levels_and_units() -> None:
    tree = loads(SMALL)
    assert (tree.scale_up_level, tree.switches_reduce) == ("rack", False)
    assert tree.network == (
        NetworkLevel(level="block", bandwidth_bytes_per_s=2.5e10, is_measured=True),
        NetworkLevel(level=None, bandwidth_bytes_per_s=1e10),
    )


def test_what_sets_nodes_apart_from_others_of_their_shape_is_read() -> None:
    lines = ("shape: dgx-h100", "usd_per_hour: 12.5", "failures_per_hour: 0.01", "data: [/data/b, /data/a, /data/b]")
    terms = "".join(f"    {line}\n" for line in lines)
    found = {node.id: node.terms for node in loads(SMALL.replace("    shape: dgx-h100\n", terms)).nodes}
    assert found["n01"] == NodeTerms(usd_per_hour=12.5, failures_per_hour=0.01, data=("/data/a", "/data/b"))
    assert found["m1"] == NodeTerms()


@pytest.mark.parametrize("line", ["usd_per_hour: -1", "failures_per_hour: -0.1", "data: /data", "usd_per_hour: .nan"])
def test_terms_that_cannot_be_are_refused_with_their_line(line: str) -> None:
    with pytest.raises(SpecError, match=rf":11: nodes\[0\]\.{line.partition(':')[0]}"):
        loads(SMALL.replace("    shape: dgx-h100\n", f"    shape: dgx-h100\n    {line}\n"))


def test_what_is_known_of_the_whole_network_is_read() -> None:
    assert loads(SMALL).facts == NetworkFacts()
    more = "rails: 8\ntransport: dpu\ntraffic_class: 106\nservice_level: 1\n"
    assert loads(SMALL + more).facts == NetworkFacts(
        num_rails=8, transport=Transport.DPU, traffic_class=106, service_level=1
    )


def test_several_parts_with_ranges_are_dealt_out_outermost_slowest() -> None:
    tree = loads(
        'version: 1\nlevels: [a, b]\nnodes: [{names: "n[1-8]", path: ["x[1-2]", "y[1-2]"], shape: dgx-h100}]\n'
    )
    assert [node.path for node in tree.nodes][::2] == [("x1", "y1"), ("x1", "y2"), ("x2", "y1"), ("x2", "y2")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            ("scale_up_level: rack", "scale_up_level: rakc"),
            r":3: scale_up_level = 'rakc': is no level; did you mean 'rack'",
        ),
        (("levels: [block, rack]", "levels: [block, block]"), r":2: levels\[1\] = 'block': is there twice"),
        (("level: block,", "level: hall,"), r":5: links\[0\].level = 'hall': is no level"),
        (("{bandwidth: 10", "{level: block, bandwidth: 10"), r":6: links\[1\] = 'block': is told twice"),
        (("10 GB/s", "10"), r":6: links\[1\].bandwidth = 10: is a bare number"),
        (('"r[1-2]"', '"r[1-3]"'), r":9: nodes\[0\].path = .*stands for 3 domains, on which 8 nodes"),
        (('[b1, "r[1-2]"]', "[b1]"), r":9: nodes\[0\].path = 'b1': must have one part for each level \(block, rack\)"),
        (("n[01-08]", "n[01-"), r":8: nodes\[0\].names = .*never ends"),
        (("n[01-08]", "n1,n1"), r":8: nodes\[0\].names = .*a thing twice"),
        (("names: m1", "names: n03"), r":12: nodes\[1\].names = .*'n03', which nodes\[0\] has as well"),
        (("free: 6", "free: 9"), r":11: nodes\[0\].free = 9: is more than the 8 slots"),
        (("    slots: 2\n", ""), r"nodes\[1\].slots: is required, as plans do not know the shape 'own'"),
        (("n[02,08]", "n[02,09]"), r":17: unusable\[0\].names = .*'n09', which is not among the nodes"),
        (("shape: own", "shap: own"), r"nodes\[1\].shap = 'own': is an unknown key; did you mean 'shape'"),
        (("version: 1", "version: 2"), r":1: version = 2"),
        (("version: 1", "version: 1\nrails: 0"), r":2: rails = 0"),
        (("slots: 2", "slots: 99999"), r"nodes\[1\].slots = 99999: must be less than or equal to 4096"),
        (("version: 1", "version: 1\ntransport: carrier"), r":2: transport = 'carrier'"),
    ],
)
def test_mistakes_are_told_with_their_lines(change: tuple[str, str], why: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(SpecError, match=why):
        loads(SMALL.replace(*change, 1))


def test_all_mistakes_are_told_at_once() -> None:
    text = SMALL.replace("free: 6", "free: 9").replace("names: m1", "names: n03").replace("n[02,08]", "zz")
    with pytest.raises(SpecError) as told:
        loads(text, file="f.yaml")
    assert [error.line for error in told.value.errors] == [11, 12, 17]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", r"\(topology\): must be a block of keys"),
        ("", r"\(topology\): is empty"),
        ("version: 1", "levels: is required"),
        ("version: 1\nlevels: []\nnodes: []", "levels: must have at least 1, and has 0"),
    ],
)
def test_what_is_no_topology_is_refused(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        loads(text)


def test_more_nodes_than_any_fleet_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_file, "MAX_NODES", 10)
    blocks = "".join(f'  - {{names: "n{at}-[1-4]", path: [b, r], shape: dgx-h100}}\n' for at in range(3))
    with pytest.raises(SpecError, match="beyond 10 nodes"):
        loads(f"version: 1\nlevels: [block, rack]\nnodes:\n{blocks}")


@given(
    st.sampled_from([line.split(":")[0].strip(" -{") for line in SMALL.splitlines() if ":" in line]),
    st.one_of(st.integers(-1, 9), st.text(max_size=6), st.lists(st.text(max_size=3), max_size=2), st.none()),
)
def test_garbage_in_any_field_is_read_or_refused(key: str, value: object) -> None:
    lines = [
        f"{line.split(key + ':')[0]}{key}: {value!r}" if f"{key}:" in line else line for line in SMALL.splitlines()
    ]
    try:
        first = loads("\n".join(lines))
    except SpecError:
        return
    assert loads("\n".join(lines)) == first
