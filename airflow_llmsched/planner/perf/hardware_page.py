"""The reference page of hardware (``docs/reference/hardware.md``), made from the facts so that it keeps up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_llmsched.domain.hardware import (
    Accelerator,
    Fabric,
    LinkLevel,
    MemoryTier,
    NodeShape,
    NumberFormat,
    TierKind,
)
from airflow_llmsched.planner.perf.hardware import accelerators, fabrics, node_shapes
from airflow_llmsched.units import GB, GIB, TERA

_HEAD = """\
# Hardware

<!-- Made by `llmsched hardware --markdown`. Do not edit: change planner/perf/data/*.toml and make it again. -->

What the planner knows of machines. `accelerators.toml`, `fabrics.toml` and `shapes.toml` in
`airflow_llmsched/planner/perf/data` hold the figures, each with its source and the day it was read; a figure that
nobody states is called an assumption there, and one that could not be found again is said to be from memory, not
checked.

- **Peaks are dense.** Sheets that print figures with sparsity are halved. MXFP8 counts as FP8, MXFP4 and NVFP4 as FP4.
- **Bandwidths are one way**: half of what a sheet gives for both. Network and disk rates here are one accelerator's
  share when all of its node move at once.
- **Memory** is what a program can see; the planner takes off what driver and libraries hold (`reserved_bytes`).
- **Levels** are the islands that a collective may span: `72 x 900` says that in islands of 72 accelerators each moves
  900 GB/s each way. A bridge between two cards is a level below the node; a rack of NVLink or a pod of TPUs is one
  above it.
- **To host** is the way between an accelerator and host memory: its own link, its share of a PCIe switch that several
  sit behind, or its share of the memory's bandwidth, whichever is least.
- **Power** is the board's limit, and what it draws doing nothing: a tenth of the limit where nobody measured it.
  A dash: nobody states it, and no joules are predicted.
- **Prices** are on-demand list prices of a whole node; `price_source` in the file says whose price stands in where
  there is none.

`node_shape(name, usd_per_hour=...)` sets a price. `NodeShape.levels` and `NodeShape.memory_tiers` are the values
behind the tables; `llmsched hardware NAME` shows one shape with its sources.
"""

_NOT_HELD = """\
## What is not held

- Which rates kernels and links really reach: that is fitted (`rates.toml`), and grows with what was measured.
- Whether an operator has switched on reduction in its switches (SHARP): `reduces` says only that the network can, the
  topology that a plan is made for (`switches_reduce`, `llmsched plan --sharp`) that it does.
- Oversubscription between racks and pods: the topology says that, too (`TopologyTree.network`).
- Accelerators that are made for inference alone or are not for hire.
"""

_DASH = "-"


def markdown() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, _accelerators(), _fabrics(), _levels(), _tiers(), _NOT_HELD])


def describe(shape: NodeShape) -> list[tuple[str, str]]:
    """Return what is known of one shape as labels and words, sources last."""
    chip, host = shape.accelerator, shape.host
    return [
        ("accelerators", f"{shape.num_accelerators} x {chip.name}, {_gib(chip.memory_bytes)} GiB each"),
        ("peaks", ", ".join(f"{each.value} {_tera(rate)}" for each, rate in chip.peak_flop_per_s.items()) + " TFLOP/s"),
        *((f"level {number}", _level(level, with_fabric=True)) for number, level in enumerate(shape.levels, start=1)),
        (
            "network cards",
            f"{shape.num_nics} of {_gb(shape.nic_bandwidth_bytes_per_s)} GB/s on {shape.num_rails} rails",
        ),
        *((tier.kind.value.replace("_", " "), _tier(tier)) for tier in shape.memory_tiers.values()),
        ("host", f"{host.num_cpu_threads} CPU threads on {host.num_numa_nodes} NUMA nodes"),
        ("power", f"{_watts(chip)} W an accelerator, {host.power_w:g} W for the rest of the node"),
        ("price", f"{shape.usd_per_hour:,.2f} USD/h: {shape.price_source}"),
        ("source", shape.source),
        ("source of the accelerator", chip.source),
    ]


def _accelerators() -> str:
    formats = list(NumberFormat)
    rows = [
        [
            f"`{chip.name}`",
            *(_tera(chip.peak_flop_per_s[each]) if each in chip.peak_flop_per_s else _DASH for each in formats),
            _gib(chip.memory_bytes),
            _gb(chip.memory_bandwidth_bytes_per_s),
            _gb(chip.host_bandwidth_bytes_per_s) if chip.host_bandwidth_bytes_per_s else _DASH,
            _watts(chip),
        ]
        for chip in accelerators().values()
    ]
    heading = ["accelerator", *(each.value for each in formats), "GiB", "memory GB/s", "to host GB/s", "W idle-limit"]
    return f"## Accelerators\n\nPeaks in TFLOP/s, dense.\n\n{_table(heading, rows)}\n"


def _fabrics() -> str:
    rows = [_fabric(fabric) for fabric in fabrics().values()]
    heading = ["network", "topology", "us a hop", "reached", "reduces", "moved by"]
    about = (
        "Latency of one hop of a collective, share of the line rate that large collectives are published to reach "
        "(plans reckon with what was fitted: `rates.toml`, `calibration.toml`), whether its switches can add up "
        "operands (NVLS, SHARP), and who moves the bytes: the host's cores, the card (RDMA), or processors on the card "
        "(DPU)."
    )
    return f"## Networks\n\n{about}\n\n{_table(heading, rows)}\n"


def _fabric(fabric: Fabric) -> list[str]:
    return [
        f"`{fabric.name}`",
        fabric.topology.value.replace("_", " "),
        f"{fabric.latency_s * 1e6:g}",
        f"{fabric.achievable_ratio:g}",
        "yes" if fabric.reduces_in_network else "no",
        fabric.transport.value,
    ]


def _levels() -> str:
    rows = [
        [
            f"`{shape.name}`",
            f"{shape.num_accelerators} x {shape.accelerator.name}",
            ", ".join(_level(level) for level in shape.levels[:-1]),
            _gb(shape.inter_node_bandwidth_bytes_per_s),
            f"{_cards(shape)}, {shape.inter_node.name}",
            str(shape.num_rails),
            f"{shape.usd_per_hour:,.2f}",
        ]
        for shape in node_shapes().values()
    ]
    heading = ["shape", "accelerators", "levels (size x GB/s)", "network GB/s", "cards x GB/s", "rails", "USD/h"]
    return f"## Node shapes: links\n\n{_table(heading, rows)}\n"


def _tiers() -> str:
    rows = [_tier_row(shape) for shape in node_shapes().values() if TierKind.HOST_DRAM in shape.memory_tiers]
    heading = [
        "shape",
        "CPU threads",
        "NUMA",
        "host GiB",
        "host GB/s",
        "GPUs a link",
        "NVMe TB",
        "NVMe GB/s",
        "store GB/s",
    ]
    about = (
        "CPU threads, NUMA nodes and bytes are the node's; rates are one accelerator's share: host memory, NVMe "
        "(read / write) and the object store. So many accelerators as `share a link` have one way to the processors."
    )
    return f"## Node shapes: memory tiers\n\n{about}\n\n{_table(heading, rows)}\n"


def _tier_row(shape: NodeShape) -> list[str]:
    host, tiers = shape.host, shape.memory_tiers
    nvme = tiers.get(TierKind.NVME)
    return [
        f"`{shape.name}`",
        str(host.num_cpu_threads),
        str(host.num_numa_nodes),
        _gib(host.memory_bytes),
        _gb(shape.host_bandwidth_bytes_per_s),
        str(host.num_accelerators_per_host_link),
        f"{host.disk_bytes / GB / 1000:.3g}" if nvme else _DASH,
        f"{_gb(nvme.read_bytes_per_s)} / {_gb(nvme.write_bytes_per_s)}" if nvme else _DASH,
        _gb(tiers[TierKind.OBJECT_STORE].read_bytes_per_s),
    ]


def _level(level: LinkLevel, *, with_fabric: bool = False) -> str:
    size = "any number" if level.num_accelerators is None else str(level.num_accelerators)
    if not with_fabric:
        return f"{size} x {_gb(level.bandwidth_bytes_per_s)}"
    return f"{size} at {_gb(level.bandwidth_bytes_per_s)} GB/s over {level.fabric.name}"


def _cards(shape: NodeShape) -> str:
    return f"{shape.num_nics} x {_gb(shape.nic_bandwidth_bytes_per_s)}"


def _tier(tier: MemoryTier) -> str:
    size = "no bound" if tier.num_bytes is None else f"{_gib(tier.num_bytes)} GiB"
    return f"{size}, read {_gb(tier.read_bytes_per_s)} GB/s, written {_gb(tier.write_bytes_per_s)} GB/s"


def _watts(chip: Accelerator) -> str:
    return f"{chip.idle_w:g}-{chip.power_limit_w:g}" if chip.power_limit_w else _DASH


def _tera(rate_flop_per_s: float) -> str:
    return f"{rate_flop_per_s / TERA:.5g}"


def _gb(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s / GB:.4g}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.5g}"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    ruler = ["---"] * len(heading)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ruler, *rows))
