"""Model shapes from Hugging Face ``config.json`` files: one table of dialects, nothing guessed.

A key of the file is placed by its dialect, or known to change neither shape nor work, or an error. A new architecture
is a new row of ``DIALECTS``. Key names and class defaults are those of transformers (``configuration_*.py`` of each
model type, read in November 2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_llmsched.domain.workload import ExpertShape, ModelShape, Positions
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.problems import nearest
from airflow_llmsched.specs.shapes import shape_problems

MAX_BYTES = 1024**2

_NEUTRAL = frozenset(
    {
        "activation_function",
        "architectures",
        "attention_dropout",
        "attention_multiplier",
        "attn_pdrop",
        "auto_map",
        "bos_token_id",
        "classifier_dropout",
        "clip_qkv",
        "dtype",
        "embd_pdrop",
        "embedding_multiplier",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "hidden_act",
        "hidden_activation",
        "hidden_dropout",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "label2id",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "logits_scaling",
        "max_position_embeddings",
        "model_type",
        "n_ctx",
        "norm_eps",
        "norm_topk_prob",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "partial_rotary_factor",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "residual_multiplier",
        "return_dict",
        "rms_norm_eps",
        "rope_local_base_freq",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rotary_emb_base",
        "rotary_pct",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "scale_attn_by_inverse_layer_idx",
        "scale_attn_weights",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "use_parallel_residual",
    }
)
"""Keys that change neither the number of parameters nor the work of a step."""
_NEUTRAL_PATTERN = re.compile(r"_.*|summary_.*")

_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "ffn_hidden_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
_WINDOW = {"attention_window_tokens": "sliding_window"}
_ATTENTION_BIAS = {"attention_qkv_bias": "attention_bias", "attention_out_bias": "attention_bias"}
_EXPERTS = {"num_active": "num_experts_per_tok"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one ``model_type`` writes a shape.

    ``keys`` maps our fields to its keys, ``facts`` are fields the architecture fixes, ``defaults`` stand for keys that
    the file leaves out (by our field; null is not left out). Where there is none, key-value heads default to the query
    heads and the head size to the hidden size over the heads. ``only`` lists structural keys that may only have the
    given values, because others would not fit a ``ModelShape``. ``expert_keys`` maps fields of ``ExpertShape``;
    ``aliases`` are other spellings of a key, ``unused`` are keys that the values of ``only`` rob of their effect.
    """

    keys: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    expert_keys: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    tied_by_default: bool = False


_LLAMA = Dialect(keys=_SIZES | _ATTENTION_BIAS | {"mlp_bias": "mlp_bias"})
_MISTRAL = Dialect(keys=_SIZES | _WINDOW, defaults={"num_kv_heads": 8, "attention_window_tokens": 4096})
_LAYER_NORM: dict[str, Any] = {"norm_has_bias": True, "gated_mlp": False, "mlp_bias": True}
_QWEN_WINDOW_OFF: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False,)}
_QWEN_UNUSED = frozenset({"sliding_window", "max_window_layers"})

DIALECTS: Mapping[str, Dialect] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": Dialect(
        keys=_SIZES | _WINDOW,
        defaults={"num_kv_heads": 8},
        aliases={"num_experts": "num_local_experts"},
        expert_keys=_EXPERTS | {"num_routed": "num_local_experts", "expert_hidden_size": "intermediate_size"},
    ),
    "qwen2": Dialect(
        keys=_SIZES,
        facts={"attention_qkv_bias": True},
        defaults={"num_kv_heads": 32},
        only=_QWEN_WINDOW_OFF | {"layer_types": ("full_attention",)},
        unused=_QWEN_UNUSED,
    ),
    "qwen3": Dialect(
        keys=_SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True},
        defaults={"head_size": 128, "num_kv_heads": 32},
        only=_QWEN_WINDOW_OFF | {"layer_types": ("full_attention",)},
        unused=_QWEN_UNUSED,
    ),
    "qwen3_moe": Dialect(
        keys=_SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True},
        defaults={"num_kv_heads": 4},
        only=_QWEN_WINDOW_OFF | {"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
        expert_keys=_EXPERTS | {"num_routed": "num_experts", "expert_hidden_size": "moe_intermediate_size"},
        aliases={"num_local_experts": "num_experts"},
        unused=_QWEN_UNUSED,
    ),
    "gemma": Dialect(
        keys=_SIZES | _ATTENTION_BIAS,
        defaults={"head_size": 256, "num_kv_heads": 16},
        only={"use_bidirectional_attention": (False,)},
        tied_by_default=True,
    ),
    "granite": _LLAMA,
    "granitemoe": Dialect(
        keys=_SIZES | _ATTENTION_BIAS,
        expert_keys=_EXPERTS | {"num_routed": "num_local_experts", "expert_hidden_size": "intermediate_size"},
    ),
    "olmo": Dialect(keys=_SIZES | _ATTENTION_BIAS, facts={"norm_has_weight": False}),
    "olmo2": Dialect(keys=_SIZES | _ATTENTION_BIAS, facts={"qk_norm": True, "qk_norm_full_width": True}),
    "phi3": Dialect(keys=_SIZES | _WINDOW),
    "gpt2": Dialect(
        keys={
            "num_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_heads": "n_head",
            "ffn_hidden_size": "n_inner",
            "vocab_size": "vocab_size",
            "max_positions": "n_positions",
        },
        facts=_LAYER_NORM | {"positions": Positions.LEARNED, "attention_qkv_bias": True, "attention_out_bias": True},
        only={"add_cross_attention": (False,)},
        tied_by_default=True,
    ),
    "gpt_neox": Dialect(
        keys={each: key for each, key in _SIZES.items() if each not in {"num_kv_heads", "head_size"}} | _ATTENTION_BIAS,
        facts=_LAYER_NORM,
        defaults={"attention_qkv_bias": True, "attention_out_bias": True},
    ),
}


def read(path: Path) -> ModelShape:
    """Read a ``config.json``; the shape is named after its folder.

    Raises:
        SpecError: the file cannot be read, is no JSON object, is of an unknown architecture, or has structural keys
            that no field of ``ModelShape`` stands for.
    """
    file = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(path="(file)", hint=f"cannot be read: {reason}; name a config.json", file=file) from None
    if len(data) > MAX_BYTES:
        raise SpecError(path="(file)", hint=f"is larger than {MAX_BYTES} bytes, which no config.json is", file=file)
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(path="(file)", hint=f"is not valid JSON: {error}", file=file) from None
    if not isinstance(config, dict):
        raise SpecError(path="(file)", hint="must hold one JSON object", file=file)
    return to_shape(config, name=path.resolve().parent.name or "model", file=file)


def to_shape(config: Mapping[str, Any], *, name: str, file: str) -> ModelShape:
    """Place every key of ``config``. Raises ``SpecError`` (see :func:`read`)."""
    dialect = _dialect(config, file)
    config = {dialect.aliases.get(key, key): value for key, value in config.items()}
    _refuse_unplaced(config, dialect, file)
    reader = _Reader(config, file)
    fields = dict(dialect.facts)
    for target, key in dialect.keys.items():
        value = reader.flag(key) if target in _FLAGS else reader.size(key)
        if key not in config:
            value = dialect.defaults.get(target)
        if value is not None:
            fields[target] = value
    _fill_sizes(fields, dialect, file)
    tied = reader.flag("tie_word_embeddings")
    fields["tied_embeddings"] = dialect.tied_by_default if tied is None else tied
    if dialect.expert_keys:
        fields["experts"] = ExpertShape(**{each: reader.need(key) for each, key in dialect.expert_keys.items()})
    shape = ModelShape(name=name, **fields)
    for problem in shape_problems(shape, ()):
        field_name = str(problem.path[-1])
        key = {**dialect.keys, **dialect.expert_keys}.get(field_name, field_name)
        raise SpecError(path=key, value=problem.value, hint=problem.hint, file=file)
    return shape


_FLAGS = frozenset({"attention_qkv_bias", "attention_out_bias", "mlp_bias"})
_NEEDED = ("num_layers", "hidden_size", "num_heads", "vocab_size")


def _dialect(config: Mapping[str, Any], file: str) -> Dialect:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in DIALECTS:
        return DIALECTS[kind]
    near = nearest(kind, DIALECTS) if isinstance(kind, str) else None
    guess = f" (the nearest known is {near!r}, which is not the same)" if near else ""
    structural = sorted(key for key in config if not _is_neutral(key) and not isinstance(config[key], (dict, str)))
    hint = f"is an architecture not known here{guess}; known: {', '.join(sorted(DIALECTS))}. Give model.shape instead"
    if structural:
        hint += f". Keys that could not be placed: {', '.join(map(repr, structural))}"
    raise SpecError(path="model_type", value=kind, hint=hint, file=file)


def _is_neutral(key: str) -> bool:
    return key in _NEUTRAL or _NEUTRAL_PATTERN.fullmatch(key) is not None


def _refuse_unplaced(config: Mapping[str, Any], dialect: Dialect, file: str) -> None:
    placed = {*dialect.keys.values(), *dialect.expert_keys.values(), *dialect.unused, "tie_word_embeddings"}
    unplaced = []
    for key, value in config.items():
        if key in dialect.only:
            if not _allowed(value, dialect.only[key]):
                hint = f"changes the model in a way that is not modelled; only {dialect.only[key][0]!r} is"
                raise SpecError(path=key, value=value, hint=hint, file=file)
        elif key not in placed and not _is_neutral(key):
            unplaced.append(key)
    if unplaced:
        keys = ", ".join(map(repr, sorted(unplaced)))
        hint = f"could not place {keys}: take out what changes neither shape nor work, or give model.shape instead"
        raise SpecError(path=min(unplaced), hint=hint, file=file)


def _allowed(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether ``value`` says nothing beyond ``allowed``; a list of layer kinds may repeat one."""
    if value is None or value in allowed:
        return True
    return isinstance(value, list) and bool(value) and all(each in allowed for each in value)


def _fill_sizes(fields: dict[str, Any], dialect: Dialect, file: str) -> None:
    for needed in _NEEDED:
        if needed not in fields:
            raise SpecError(
                path=dialect.keys[needed], hint="is missing; the shape cannot be known without it", file=file
            )
    hidden, heads = fields["hidden_size"], fields["num_heads"]
    fields.setdefault("num_kv_heads", heads)
    if "head_size" not in fields:
        if hidden % heads:
            hint = f"must divide {dialect.keys['hidden_size']}={hidden} when no head size is given"
            raise SpecError(path=dialect.keys["num_heads"], value=heads, hint=hint, file=file)
        fields["head_size"] = hidden // heads
    if "ffn_hidden_size" not in fields:
        key = dialect.keys["ffn_hidden_size"]
        if key != "n_inner":
            raise SpecError(path=key, hint="is missing; the shape cannot be known without it", file=file)
        fields["ffn_hidden_size"] = 4 * hidden


class _Reader:
    """Typed access to the keys of one file. A key that is absent or null reads as None."""

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self._config = config
        self._file = file

    def size(self, key: str) -> int | None:
        value = self._config.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise SpecError(path=key, value=value, hint="must be a whole number of at least 1", file=self._file)
        return value

    def need(self, key: str) -> int:
        value = self.size(key)
        if value is None:
            raise SpecError(path=key, hint="is missing; the shape cannot be known without it", file=self._file)
        return value

    def flag(self, key: str) -> bool | None:
        value = self._config.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise SpecError(path=key, value=value, hint="must be true or false", file=self._file)
