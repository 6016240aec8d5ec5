"""A decoder-only Transformer over bytes: rotary positions, RMS norms, no biases."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from airflow_llmsched.trainers.settings import TrainSettings

# Axes: B = sequence, T = position, H = head, E = element of a head

_INIT_STD = 0.02
_ROTARY_BASE = 10_000.0


class ByteGpt(nn.Module):
    """The model that ``settings`` describe. Freshly made, its parameters depend on ``settings.seed`` alone."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__()
        self.head_size = settings.hidden_size // settings.num_heads
        self.embedding = nn.Embedding(settings.vocab_size, settings.hidden_size)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.num_layers))
        self.norm = nn.RMSNorm(settings.hidden_size)
        self.head = nn.Linear(settings.hidden_size, settings.vocab_size, bias=False)
        if settings.tied_embeddings:
            self.head.weight = self.embedding.weight
        self._initialise(settings)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits, one row of ``vocab_size`` per position."""
        rotation = rotary_angles(num_positions=tokens_BT.shape[1], head_size=self.head_size)
        hidden = self.embedding(tokens_BT)
        for block in self.blocks:
            hidden = block(hidden, rotation)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def _initialise(self, settings: TrainSettings) -> None:
        """Normal weights; those that write into the residual stream are smaller by its depth (Radford et al., 2019)."""
        generator = torch.Generator().manual_seed(settings.seed)
        residual_std = _INIT_STD / (2 * settings.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                std = residual_std if name.endswith(("attention.out.weight", "mlp.down.weight")) else _INIT_STD
                nn.init.normal_(parameter, std=std, generator=generator)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(settings.hidden_size)
        self.attention = Attention(settings)
        self.mlp_norm = nn.RMSNorm(settings.hidden_size)
        self.mlp = Mlp(settings)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the residual stream behind this block."""
        attended: Tensor = hidden + self.attention(self.attention_norm(hidden), rotation)
        result: Tensor = attended + self.mlp(self.mlp_norm(attended))
        return result


class Attention(nn.Module):
    """Causal self-attention; groups of queries share keys and values when ``num_kv_heads`` is below ``num_heads``."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.num_kv_heads = settings.key_value_heads
        self.head_size = settings.hidden_size // settings.num_heads
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        self.qkv = nn.Linear(settings.hidden_size, width, bias=False)
        self.out = nn.Linear(settings.hidden_size, settings.hidden_size, bias=False)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return what each position gathers from itself and those before it."""
        num_sequences, num_positions, _ = hidden.shape
        heads_BHTE = self.qkv(hidden).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        num_turned = self.num_heads + self.num_kv_heads
        turned_BHTE = rotate(heads_BHTE[:, :num_turned], rotation)
        query, key, value = (
            turned_BHTE[:, : self.num_heads],
            turned_BHTE[:, self.num_heads :],
            heads_BHTE[:, num_turned:],
        )
        gathered = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        merged: Tensor = self.out(gathered.transpose(1, 2).reshape(num_sequences, num_positions, -1))
        return merged


class Mlp(nn.Module):
    """SwiGLU (Shazeer, 2020) when ``gated_mlp``, else GELU."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__()
        self.gated = settings.gated_mlp
        width = settings.ffn_hidden_size * (2 if self.gated else 1)
        self.up = nn.Linear(settings.hidden_size, width, bias=False)
        self.down = nn.Linear(settings.ffn_hidden_size, settings.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the MLP's output for each position."""
        wide = self.up(hidden)
        if self.gated:
            gate, wide = wide.chunk(2, dim=-1)
            activated = functional.silu(gate) * wide
        else:
            activated = functional.gelu(wide)
        narrow: Tensor = self.down(activated)
        return narrow


def rotary_angles(*, num_positions: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles (Su et al., 2021), shaped positions x half a head."""
    inverse_frequency = _ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse_frequency)
    return angles.cos(), angles.sin()


def rotate(heads_BHTE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the first and second half of each head against each other by its position's angles."""
    cosine, sine = rotation
    first, second = heads_BHTE.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
