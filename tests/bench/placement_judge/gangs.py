"""Gangs as mixes of jobs hold them: a layout, what a step computes, and what its ranks send each other.

Sizes of models grow with the gang, as they do where people pretrain; figures of models are rounded from public ones
(Llama, Mixtral, GPT-3). Accelerators compute at 400 TFLOP/s, about what dense BF16 training reaches on an H100.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from airflow_llmsched.domain.layout import MAX_ZERO_STAGE, ParallelLayout
from tests.bench.placement_judge.exchanges import Exchange, Pattern, groups_of
from tests.bench.placement_judge.fleet import Ask

SLOTS_PER_NODE = 8
FLOP_PER_S = 400e12
TOKENS = (2048, 4096, 8192)
"""Tokens of a step for each accelerator: large runs are at the lower end (Llama 3 405B had about 1,000)."""
BF16_BYTES = 2
FP32_BYTES = 4


class Kind(StrEnum):
    """How a gang is split."""

    THREE_D = "tensor, pipeline and data parallel"
    FSDP = "fully sharded"
    EXPERTS = "experts over nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``num_shared`` parameters work on every token; of ``num_expert`` ones, ``active_ratio`` do."""

    num_shared: float
    num_layers: int
    hidden_size: int
    num_expert: float = 0.0
    active_ratio: float = 0.0

    @property
    def num_active(self) -> float:
        """Parameters that work on a token."""
        return self.num_shared + self.active_ratio * self.num_expert


DENSE = (
    (2, Model(num_shared=7e9, num_layers=32, hidden_size=4096)),
    (4, Model(num_shared=13e9, num_layers=40, hidden_size=5120)),
    (8, Model(num_shared=34e9, num_layers=48, hidden_size=8192)),
    (16, Model(num_shared=70e9, num_layers=80, hidden_size=8192)),
    (1 << 30, Model(num_shared=175e9, num_layers=96, hidden_size=12288)),
)
"""The model of gangs of at most so many nodes."""
EXPERTS = Model(num_shared=2e9, num_layers=32, hidden_size=4096, num_expert=45e9, active_ratio=0.25)
TOP_K = 2
LARGEST_SHARDED = DENSE[2][1]
"""Beyond it, whoever shards splits layers too."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """One job. Its id is its place in the mix."""

    id: int
    kind: Kind
    layout: ParallelLayout
    model: Model
    tokens_per_replica: int

    @property
    def num_slots(self) -> int:
        """Accelerators."""
        return self.layout.world_size

    @property
    def spans_nodes(self) -> bool:
        """Whether no single node holds it."""
        return self.num_slots > SLOTS_PER_NODE

    @property
    def compute_s(self) -> float:
        """Seconds of computing in a step: 6 FLOP a parameter and token (Kaplan et al. 2020)."""
        return 6 * self.model.num_active * self.tokens_per_replica / FLOP_PER_S / (self.layout.tp * self.layout.pp)

    def ask(self, *, preferred_level: int | None) -> Ask:
        """Return the gang as a scheduler of nodes is asked for it: whole nodes, or a part of one."""
        slots_per_pod = min(self.num_slots, SLOTS_PER_NODE)
        return Ask(
            num_pods=self.num_slots // slots_per_pod, slots_per_pod=slots_per_pod, preferred_level=preferred_level
        )

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What is sent in a step, in order."""
        return tuple(self._exchanges())

    def _exchanges(self) -> Iterator[Exchange]:
        layout, model = self.layout, self.model
        activation = self.tokens_per_replica * model.hidden_size * BF16_BYTES
        tensor = 4 * model.num_layers / layout.pp * activation * 2 * _scatter(layout.tp)
        yield self._exchange("tp", Pattern.RING, 1, layout.tp, tensor)
        if model.num_expert:
            routed = 4 * model.num_layers * activation * TOP_K / layout.ep
            yield self._exchange("ep", Pattern.ALL_TO_ALL, layout.tp, layout.ep, routed)
        yield self._exchange("pp", Pattern.NEIGHBOURS, layout.tp * layout.dp, layout.pp, activation / layout.tp)
        # gradients are scattered in single precision, parameters gathered in half; twice if they are sharded too
        num_bytes = FP32_BYTES + BF16_BYTES * (2 if layout.zero_stage == MAX_ZERO_STAGE else 1)
        shared = model.num_shared / (layout.tp * layout.pp) * num_bytes * _scatter(layout.dp)
        yield self._exchange("dp", Pattern.RING, layout.tp, layout.dp, shared)
        if model.num_expert:
            copies = layout.dp // layout.ep
            expert = model.num_expert / layout.ep * num_bytes * _scatter(copies)
            yield self._exchange("expert dp", Pattern.RING, layout.ep, copies, expert)

    def _exchange(self, name: str, pattern: Pattern, stride: int, size: int, num_bytes: float) -> Exchange:
        ranks_GM = groups_of(stride=stride, size=size, world_size=self.num_slots)
        return Exchange(name=name, pattern=pattern, ranks_GM=ranks_GM, bytes_per_flow=num_bytes)


def _scatter(size: int) -> float:
    """What a ring sends over each hop to scatter or gather one byte; to add it up for all, twice that (Thakur 2005)."""
    return (size - 1) / size


def draw_gang(rng: np.random.Generator, *, id_: int, num_slots: int) -> Gang:
    """Draw a layout and model for so many accelerators: a part of a node, or whole nodes."""
    num_nodes = num_slots // SLOTS_PER_NODE
    tokens = int(rng.choice(TOKENS))
    kind = Kind(rng.choice(list(Kind))) if num_nodes > 1 else Kind.FSDP
    if kind is Kind.EXPERTS:
        degrees = [degree for degree in (8, 16, 32) if num_slots % degree == 0]
        layout = ParallelLayout(dp=num_slots, ep=int(rng.choice(degrees)), expert_tp=1, zero_stage=1)
        return Gang(id=id_, kind=kind, layout=layout, model=EXPERTS, tokens_per_replica=tokens)
    model = next(model for most, model in DENSE if max(num_nodes, 1) <= most)
    if kind is Kind.FSDP:
        model = min(model, LARGEST_SHARDED, key=lambda each: each.num_shared)
        layout = ParallelLayout(dp=num_slots, zero_stage=3)
        return Gang(id=id_, kind=kind, layout=layout, model=model, tokens_per_replica=tokens)
    pp = int(rng.choice([stages for stages in (1, 2, 4, 8) if num_nodes % stages == 0]))
    layout = ParallelLayout(dp=num_nodes // pp, tp=SLOTS_PER_NODE, pp=pp, zero_stage=1)
    return Gang(id=id_, kind=kind, layout=layout, model=model, tokens_per_replica=tokens * layout.tp * layout.pp)
