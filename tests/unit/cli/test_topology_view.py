from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from airflow_llmsched.cli import topology_view
from airflow_llmsched.cli.topology_view import differences, domains, links, node_links
from airflow_llmsched.domain.node_topology import DeviceLink, GpuPlace, NodeTopology, Path
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.topology.comparison import compare
from airflow_llmsched.topology.reading import Machines, Network, hung


def tree(num_racks: int = 2) -> TopologyTree:
    paths = {f"n{number}": ("b[1]", f"r{number // 2}") for number in range(2 * num_racks)}
    return hung(Network(levels=("block", "rack"), paths=paths), Machines(shape="dgx-h100"))


def shown(*parts: object) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


def test_domains_are_drawn_with_what_is_free_and_nodes_where_there_are_few() -> None:
    broken = replace(tree().nodes[0], unusable_reason="broken fan")
    text = shown(domains(replace(tree(), nodes=(broken, *tree().nodes[1:])), with_nodes=False))
    assert "levels: block > rack  4 nodes, 24 of 32 slots free, 1 not usable" in text
    assert "b[1]  4 nodes" in text, "square brackets are no markup"
    assert "n0  0 of 8 free, dgx-h100, not usable: broken fan" in text


def test_of_many_domains_and_nodes_the_first_are_drawn_unless_all_are_wanted() -> None:
    many = tree(num_racks=100)
    text = shown(domains(many, with_nodes=False))
    assert "and 52 more: --nodes lists all" in text
    assert "n199" not in text
    assert "n199" in shown(domains(many, with_nodes=True))


def test_names_cannot_steer_the_terminal() -> None:
    odd = replace(tree().nodes[0], id="n\x1b[31m0", path=("b\n2", "r\x07"))  # type: ignore[arg-type]
    text = shown(domains(replace(tree(), nodes=(odd,)), with_nodes=True))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "n\N{REPLACEMENT CHARACTER}[31m0" in text


def test_links_are_told_by_level() -> None:
    told = (
        NetworkLevel(level=None, bandwidth_bytes_per_s=1e9),
        NetworkLevel(level="block", bandwidth_bytes_per_s=2.5e10, is_measured=True),
    )
    text = links(replace(tree(), network=told, scale_up_level="rack", switches_reduce=True))
    assert "  all nodes: 1 GB/s\n  block: 25 GB/s, measured\nfastest links: within each rack" in text
    assert text.endswith("switches add up (SHARP)")
    assert links(tree()) == "fastest links: within each node"


def test_a_nodes_accelerators_are_told_with_what_is_beside_them() -> None:
    node = NodeTopology(
        gpus=(GpuPlace(index=0, cpus=((0, 47), (96, 96)), numa_index=0), GpuPlace(index=1)),
        nics=("mlx5_0",),
        gpu_links={0: {1: DeviceLink(path=Path.NVLINK, num_links=18)}},
        nic_links={0: {"mlx5_0": DeviceLink(path=Path.PIX)}},
    )
    text = shown(node_links(node))
    for words in ("2 GPUs, 1 network cards", "0-47,96", "mlx5_0 (PIX)", "1: 18", "0: 18"):
        assert words in text


def test_differences_are_told_kind_by_kind(monkeypatch) -> None:
    monkeypatch.setattr(topology_view, "MAX_CHANGES", 3)
    before, after = tree(), tree(num_racks=4)
    moved = replace(after.nodes[0], path=("b[1]", "r9"))
    changed = replace(after.nodes[1], num_free_slots=1)
    text = shown(
        *differences(compare(before, replace(after, switches_reduce=True, nodes=(moved, changed, *after.nodes[2:]))))
    )
    for words in (
        "switches reduce",
        "4 nodes added",
        "and 1 more",
        "1 nodes moved",
        "b[1] / r9",
        "1 nodes changed",
        "1 of 8 free",
    ):
        assert words in text, words
