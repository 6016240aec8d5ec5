"""Accelerators, fabrics and node shapes: dense peaks, memory, links and power, as their makers state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class NumberFormat(StrEnum):
    """Format of the matrix operands, and of stored weights where named so.

    Block-scaled kinds count as their width: MXFP8 is ``FP8``; MXFP4 and NVFP4 are ``FP4``.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"


class FabricTopology(StrEnum):
    """Who is wired to whom, which decides what two members alone can move between them."""

    SWITCHED = "switched"
    FULL_MESH = "full_mesh"
    TORUS_2D = "torus_2d"
    TORUS_3D = "torus_3d"
    TREE = "tree"


class Transport(StrEnum):
    """Who moves the bytes: the host's cores, the card by itself (RDMA), or processors on the card (a DPU)."""

    HOST = "host"
    CARD = "card"
    DPU = "dpu"


class TierKind(StrEnum):
    """Where a rank's bytes can live, nearest first."""

    HBM = "hbm"
    PEER_HBM = "peer_hbm"
    HOST_DRAM = "host_dram"
    NVME = "nvme"
    OBJECT_STORE = "object_store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as a rank sees it. ``peak_flop_per_s`` is dense, by operand format.

    ``reserved_bytes`` is what driver, runtime and communication library hold before the first tensor.
    ``host_bandwidth_bytes_per_s`` is one-way, of its own link to the host (PCIe or a link between chips);
    ``power_limit_w`` is the board's limit and ``idle_w`` what it draws doing nothing with a driver loaded. Zero in
    these three: not stated by anybody. What training reaches of all this is not here but in ``planner.perf.rates``.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[NumberFormat, float]
    source: str
    reserved_bytes: int = 0
    vendor: str = ""
    host_bandwidth_bytes_per_s: float = 0.0
    power_limit_w: float = 0.0
    idle_w: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A kind of network, whatever the number of its ports.

    ``latency_s`` is one hop of a collective. ``achievable_ratio`` is the share of the line rate that large collectives
    are published to reach: for readers, as plans reckon with ``planner.perf.rates``. ``reduces_in_network``
    says that switches of this kind can add operands up (NVLS, SHARP); that an operator has switched it on is not said.
    ``topology`` decides the rate of one pair.
    """

    name: str
    latency_s: float
    source: str
    topology: FabricTopology = FabricTopology.SWITCHED
    achievable_ratio: float = 0.8
    reduces_in_network: bool = False
    transport: Transport = Transport.CARD


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLevel:
    """One level of the network that accelerators see: islands of ``num_accelerators`` (None: any number).

    ``bandwidth_bytes_per_s`` is one-way and per accelerator, all of its links together.
    """

    num_accelerators: int | None
    bandwidth_bytes_per_s: float
    fabric: Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the accelerators, as one tenant gets it. Zero: it has none, or nobody says.

    Rates are of the whole node. ``num_accelerators_per_host_link`` is how many share one link to the processors,
    which is where PCIe contends; ``host_link_bandwidth_bytes_per_s`` is that link's one-way rate where it is not the
    accelerator's own. ``storage_bandwidth_bytes_per_s`` is of the network cards that reach storage.
    ``power_w`` is what the rest of the node draws at work: processors, memory, network cards, fans.
    """

    num_cpu_threads: int = 0
    num_numa_nodes: int = 1
    memory_bytes: int = 0
    memory_bandwidth_bytes_per_s: float = 0.0
    num_accelerators_per_host_link: int = 1
    host_link_bandwidth_bytes_per_s: float | None = None
    disk_bytes: int = 0
    disk_read_bytes_per_s: float = 0.0
    disk_write_bytes_per_s: float = 0.0
    storage_bandwidth_bytes_per_s: float = 0.0
    power_w: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """One place for bytes: what each accelerator gets of it when all of its node use it at once.

    ``num_bytes`` is None where there is no bound.
    """

    kind: TierKind
    num_bytes: int | None
    read_bytes_per_s: float
    write_bytes_per_s: float


NODE_FABRIC = Fabric(name="node", latency_s=4e-6, source="NCCL tuning constant for NVLink, Simple protocol")
NETWORK_FABRIC = Fabric(name="network", latency_s=14e-6, source="NCCL tuning constant for networks, Simple protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One kind of machine. Bandwidths are one-way and per accelerator; price is the list price of the whole node.

    ``overlaps_communication`` is False where collectives take the processor that computes. ``island`` is a level of
    the network that does not end with the node: a bridge between two of its cards, or a rack that is one NVLink domain.
    ``num_nics`` cards of ``nic_bandwidth_bytes_per_s`` serve the node on ``num_rails`` planes of the network.
    """

    name: str
    accelerator: Accelerator
    num_accelerators: int
    intra_node_bandwidth_bytes_per_s: float
    inter_node_bandwidth_bytes_per_s: float
    usd_per_hour: float
    source: str
    overlaps_communication: bool = True
    intra_node: Fabric = NODE_FABRIC
    inter_node: Fabric = NETWORK_FABRIC
    island: LinkLevel | None = None
    num_nics: int = 0
    nic_bandwidth_bytes_per_s: float = 0.0
    num_rails: int = 1
    host: Host = Host()
    cloud: str = ""
    price_source: str = ""

    @property
    def intra_node_latency_s(self) -> float:
        """One hop of a collective inside the node."""
        return self.intra_node.latency_s

    @property
    def inter_node_latency_s(self) -> float:
        """One hop of a collective over the network."""
        return self.inter_node.latency_s

    @property
    def levels(self) -> tuple[LinkLevel, ...]:
        """Levels of the network, fastest and smallest first; the last one holds any number of accelerators."""
        node = LinkLevel(
            num_accelerators=self.num_accelerators,
            bandwidth_bytes_per_s=self.intra_node_bandwidth_bytes_per_s,
            fabric=self.intra_node,
        )
        network = LinkLevel(
            num_accelerators=None, bandwidth_bytes_per_s=self.inter_node_bandwidth_bytes_per_s, fabric=self.inter_node
        )
        if self.island is None:
            return (node, network)
        if (self.island.num_accelerators or 0) < self.num_accelerators:
            return (self.island, node, network)
        return (self.island, network)

    @property
    def island_joins_nodes(self) -> bool:
        """Whether the fastest links reach beyond the node, as in a rack that is one NVLink domain."""
        return self.island is not None and (self.island.num_accelerators or 0) > self.num_accelerators

    @property
    def scale_up_size(self) -> int:
        """Accelerators of the first level: the NVLink (ICI, Infinity Fabric) domain."""
        return self.levels[0].num_accelerators or self.num_accelerators

    @property
    def host_bandwidth_bytes_per_s(self) -> float:
        """One-way rate between one accelerator and host memory when all move at once.

        The accelerator's own link, its share of a link that several use, and of the host's memory: the least of them.
        """
        host, own = self.host, self.accelerator.host_bandwidth_bytes_per_s
        link = own if host.host_link_bandwidth_bytes_per_s is None else host.host_link_bandwidth_bytes_per_s
        share = link / host.num_accelerators_per_host_link
        return min(own, share, host.memory_bandwidth_bytes_per_s / self.num_accelerators)

    @property
    def memory_tiers(self) -> Mapping[TierKind, MemoryTier]:
        """Where a rank's bytes can live, nearest first. A tier that the node does not have is left out."""
        chip, first = self.accelerator, self.levels[0]
        return {
            tier.kind: tier
            for tier in (
                _tier(TierKind.HBM, chip.memory_bytes, chip.memory_bandwidth_bytes_per_s),
                _tier(TierKind.PEER_HBM, chip.memory_bytes * (self.scale_up_size - 1), first.bandwidth_bytes_per_s),
                *self._host_tiers(),
            )
            if tier.num_bytes != 0 and tier.read_bytes_per_s > 0
        }

    def _host_tiers(self) -> tuple[MemoryTier, ...]:
        host, n = self.host, self.num_accelerators
        link = self.host_bandwidth_bytes_per_s
        return (
            _tier(TierKind.HOST_DRAM, host.memory_bytes // n, link),
            MemoryTier(
                kind=TierKind.NVME,
                num_bytes=host.disk_bytes // n,
                read_bytes_per_s=min(link, host.disk_read_bytes_per_s / n),
                write_bytes_per_s=min(link, host.disk_write_bytes_per_s / n),
            ),
            _tier(TierKind.OBJECT_STORE, None, min(link, host.storage_bandwidth_bytes_per_s / n)),
        )


def _tier(kind: TierKind, num_bytes: int | None, rate: float) -> MemoryTier:
    return MemoryTier(kind=kind, num_bytes=num_bytes, read_bytes_per_s=rate, write_bytes_per_s=rate)
