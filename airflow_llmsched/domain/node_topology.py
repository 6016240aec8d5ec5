"""How the accelerators, network cards and processors inside one node are joined. ``topology.nvidia_smi`` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Path(StrEnum):
    """What lies between two devices of a node, nearest first. Words are those of ``nvidia-smi topo -m``."""

    NVLINK = "NV"
    """Links of their own between two GPUs, directly or over NVSwitch."""
    PIX = "PIX"
    """At most one PCIe bridge."""
    PXB = "PXB"
    """Several PCIe bridges, but no host bridge."""
    PHB = "PHB"
    """A PCIe host bridge, which is usually the processor."""
    NODE = "NODE"
    """The way between host bridges of one NUMA node."""
    SYS = "SYS"
    """The way between NUMA nodes."""

    @property
    def distance_rank(self) -> int:
        """Place in the order of nearness, 0 the nearest."""
        return tuple(Path).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLink:
    """What joins two devices. ``num_links`` are NVLinks bonded together, 0 on any other path."""

    path: Path
    num_links: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """One accelerator: the slot of this index. ``cpus`` are ranges of the processors beside it, both ends included.

    ``numa_index`` is the NUMA node of those processors, None where nobody says.
    """

    index: int
    cpus: tuple[tuple[int, int], ...] = ()
    numa_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """Accelerators by index, network cards by the names that NCCL and the kernel have for them, and what joins them.

    ``gpu_links`` has each pair once, by the lower index and then the higher; ``nic_links`` are by accelerator and then
    card.
    """

    gpus: tuple[GpuPlace, ...]
    nics: tuple[str, ...] = ()
    gpu_links: Mapping[int, Mapping[int, DeviceLink]] = field(default_factory=dict)
    nic_links: Mapping[int, Mapping[str, DeviceLink]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse links of devices that are not there. Raises ``ValueError``."""
        indexes = {gpu.index for gpu in self.gpus}
        if len(indexes) < len(self.gpus) or len(set(self.nics)) < len(self.nics):
            raise ValueError("a device is there twice")
        for one, other in ((one, other) for one, others in self.gpu_links.items() for other in others):
            if not one < other or not {one, other} <= indexes:
                raise ValueError(f"a link between GPU {one} and GPU {other}, of which there is none or no such order")
        for gpu, nics in self.nic_links.items():
            if gpu not in indexes or not nics.keys() <= set(self.nics):
                raise ValueError(
                    f"a link between GPU {gpu} and one of the cards {', '.join(nics)}, which are not there"
                )

    def num_nvlinks(self, one: int, other: int) -> int:
        """Return how many NVLinks join two accelerators."""
        link = self.gpu_links.get(min(one, other), {}).get(max(one, other))
        return 0 if link is None else link.num_links

    def nearest_nics(self, gpu: int) -> tuple[str, ...]:
        """Return the cards that are nearest to an accelerator, all equally near, in the order of ``nics``."""
        near = {nic: link.path.distance_rank for nic, link in self.nic_links.get(gpu, {}).items()}
        return tuple(nic for nic in self.nics if nic in near and near[nic] == min(near.values()))

    def nvlink_islands(self) -> tuple[tuple[int, ...], ...]:
        """Return the accelerators by the NVLink islands they are in, each island and all of them in ascending order."""
        island_of = {gpu.index: {gpu.index} for gpu in self.gpus}
        links = ((one, other, link) for one, others in self.gpu_links.items() for other, link in others.items())
        for one, other, link in links:
            if link.path is Path.NVLINK and island_of[one] is not island_of[other]:
                joined = island_of[one] | island_of[other]
                island_of |= dict.fromkeys(joined, joined)
        return tuple(sorted({tuple(sorted(island)) for island in island_of.values()}))
