from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.node_topology import DeviceLink, Path
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.nvidia_smi import NodeReading, read_nvidia_smi

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
# As drivers from 535 on print it: cells between tabs, the header underlined, cards by number with a legend.
NEW = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t48-95,144-191\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t\n"
    f"{LEGEND}\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_7\n\n"
)
# As drivers from 450 to 470 print it: cards under their own names.
MIDDLE = """\
\tGPU0\tGPU1\tmlx5_0\tmlx5_7\tCPU Affinity\tNUMA Affinity
GPU0\tX\tNV18\tPIX\tSYS\t0-47,96-143\t0
GPU1\tNV18\tX \tSYS\tPXB\t48-95,144-191\t1
mlx5_0\tPIX\tSYS\tX\tSYS\t\t
mlx5_7\tSYS\tPXB\tSYS\tX \t\t
"""
# Before 450, and as people paste it: no NUMA nodes, cells between blanks, comments in front.
OLD = """\
#         GPU0    GPU1    mlx5_0  mlx5_7  CPU Affinity
# GPU0     X      NV18    PIX     SYS     0-47,96-143
# GPU1    NV18     X      SYS     PXB     48-95,144-191
# mlx5_0  PIX     SYS      X      SYS
# mlx5_7  SYS     PXB     SYS      X
"""


@pytest.mark.parametrize("text", [NEW, MIDDLE, OLD, NEW.replace("\t", "    ")], ids=["new", "middle", "old", "blanks"])
def test_every_drivers_form_tells_the_same_node(text: str) -> None:
    found = read_nvidia_smi(text).node
    assert [(gpu.index, gpu.cpus) for gpu in found.gpus] == [(0, ((0, 47), (96, 143))), (1, ((48, 95), (144, 191)))]
    assert found.nics == ("mlx5_0", "mlx5_7")
    assert found.gpu_links == {0: {1: DeviceLink(path=Path.NVLINK, num_links=18)}}
    assert {gpu: {nic: link.path for nic, link in nics.items()} for gpu, nics in found.nic_links.items()} == {
        0: {"mlx5_0": Path.PIX, "mlx5_7": Path.SYS},
        1: {"mlx5_0": Path.SYS, "mlx5_7": Path.PXB},
    }
    assert [gpu.numa_index for gpu in found.gpus] == ([None, None] if text is OLD else [0, 1])
    assert read_nvidia_smi(text).warnings == {}


def test_a_node_of_one_gpu_without_cards_is_a_matrix_too() -> None:
    found = read_nvidia_smi("        GPU0    CPU Affinity    NUMA Affinity\nGPU0     X      0-11    N/A\n")
    assert [(gpu.cpus, gpu.numa_index) for gpu in found.node.gpus] == [(((0, 11),), None)]
    assert found.warnings == {"GPU without one NUMA node": 1}


def test_processors_one_by_one_and_several_numa_nodes_are_understood() -> None:
    found = read_nvidia_smi("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0,2,4-6\t0,8,252-255\n")
    assert found.node.gpus[0].cpus == ((0, 0), (2, 2), (4, 6))
    assert found.warnings == {"GPU without one NUMA node": 1}


def test_what_is_missing_is_counted() -> None:
    text = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tDIS\tPIX\tsome\nGPU1\tDIS\t X \tN/A\tN/A\n"
    found = read_nvidia_smi(text)
    assert found.node.nics == ("NIC0",)
    assert found.warnings == {
        "GPU whose processors are not told": 1,
        "card of which the legend does not say the name": 1,
        "card without a row": 1,
        "pair of devices of which nothing is told": 3,
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("GPU1\tNV18\t X", "GPU1\tNV12\t X"), "line 3: NV12 joins GPU1 and GPU0, and something else does on line 2"),
        (("GPU0\t X \tNV18", "GPU0\tNV1\tNV18"), "line 2: 'NV1' stands between GPU0 and GPU0. X is a device itself"),
        (("GPU0\t X \tNV18", "GPU0\t X \tX"), "'X' stands between GPU0 and GPU1"),
        (("PIX\tSYS\t0-47", "PIX\tFAR\t0-47"), "'FAR' is no way between devices"),
        (("PIX\tSYS\t0-47,96-143\t0\t\tN/A", "PIX"), "line 2: GPU0 has 3 cells, and there are 4 columns"),
        (("NIC1\tSYS\tPXB", "GPU1\tSYS\tPXB"), "line 5: GPU1 has a row on line 3 as well"),
        (("GPU1\tNV18\t X", "GPUx\tNV18\t X"), "GPU1 has a column but no row"),
        (("NIC1: mlx5_7", "NIC1: mlx5_0"), "gives two cards one name"),
        (("GPU0\tGPU1\tNIC0", "GPU0\tGPU0\tNIC0"), "line 1: names a device twice"),
        (("\t\x1b[4mGPU0", "\tCPU0"), "no line of column names"),
    ],
)
def test_contradictions_are_refused_with_the_line(change: tuple[str, str], why: str) -> None:
    assert change[0] in NEW
    with pytest.raises(DataError, match=why):
        read_nvidia_smi(NEW.replace(*change, 1))


def test_outputs_of_two_nodes_are_not_taken_for_one() -> None:
    with pytest.raises(DataError, match="line 8: begins a second matrix"):
        read_nvidia_smi(f"{MIDDLE}\nnode02:\n{MIDDLE}")
    with pytest.raises(DataError, match="characters long"):
        read_nvidia_smi(MIDDLE + " " * 2**20)


@given(st.permutations(MIDDLE.splitlines()[1:]))
def test_the_order_of_rows_does_not_matter(rows: list[str]) -> None:
    assert read_nvidia_smi("\n".join([MIDDLE.splitlines()[0], *rows])) == read_nvidia_smi(MIDDLE)


WORDS = st.sampled_from(
    [
        "GPU0",
        "GPU1",
        "NIC0",
        "X",
        "NV4",
        "PIX",
        "SYS",
        "0-3",
        "N/A",
        "CPU Affinity",
        "\t",
        "\n",
        " ",
        "NIC0: a",
        "Legend:",
    ]
)


@given(st.lists(st.one_of(WORDS, st.text(max_size=3)), max_size=30).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        first = read_nvidia_smi(text)
    except DataError:
        return
    assert isinstance(first, NodeReading)
    assert read_nvidia_smi(text) == first
