"""What files say layer by layer: which layers have a window, which have experts, and what hangs on several keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat
from typing import Any

from airflow_llmsched.domain.workload import LatentAttention
from airflow_llmsched.specs.hf_config.dialect import Derive, Fields
from airflow_llmsched.specs.hf_config.keys import Keys

FULL = "full_attention"
_BOUNDED = ("sliding_attention", "chunked_attention")

IsFull = Callable[[Keys, int, int], bool]
"""Whether a layer attends to the start where the file has no ``layer_types``: keys, its number, number of layers."""


def windows(is_full: IsFull, *, key: str = "sliding_window", default: int | None = None) -> Derive:
    """Read a window of ``key`` and the layers without it: by ``layer_types``, or by the architecture's rule."""

    def derive(keys: Keys, fields: Fields) -> Fields:
        window, num_layers = keys.size(key, default), fields["num_layers"]
        types = keys.words("layer_types", length=num_layers)
        full = tuple(number for number in range(num_layers) if is_full(keys, number, num_layers))
        if types is not None:
            if strange := sorted(set(types) - {FULL, *_BOUNDED}):
                keys.refuse("layer_types", f"has layers that are not modelled: {', '.join(strange)}")
            full = tuple(number for number, kind in enumerate(types) if kind == FULL)
            if window is None and len(full) < num_layers:
                keys.refuse(key, "is missing, though layer_types has layers with a window")
        return _window_fields(window, full, num_layers)

    return derive


def no_layer(_keys: Keys, _number: int, _num_layers: int) -> bool:
    """Every layer has the window, if there is one (Mistral)."""
    return False


def before(key: str, default: int) -> IsFull:
    """Layers before the one that ``key`` numbers attend to the start (dots.llm1)."""
    return lambda keys, number, _num_layers: number < keys.count(key, default)


def every(interval: int) -> IsFull:
    """Every so manyth layer attends to the start (Gemma 2: 2, Gemma 3: 6), or as ``sliding_window_pattern`` says."""

    def is_full(keys: Keys, number: int, _num_layers: int) -> bool:
        found = [key for key in ("sliding_window_pattern", "_sliding_window_pattern") if key in keys]
        period = keys.size(found[0], interval) if found else interval
        return (number + 1) % (period or interval) == 0

    return is_full


def letters(interval: int) -> IsFull:
    """EXAONE 4: ``sliding_window_pattern`` is a number, or letters L (local) and G (global) that repeat."""

    def is_full(keys: Keys, number: int, num_layers: int) -> bool:
        pattern = keys.raw("sliding_window_pattern")
        if not isinstance(pattern, str):
            return every(interval)(keys, number, num_layers)
        if not pattern or set(pattern) - {"L", "G"}:
            keys.refuse("sliding_window_pattern", "must be a number, or letters L (local) and G (global)")
        return number == num_layers - 1 or pattern[number % len(pattern)] == "G"

    return is_full


def qwen_windows(keys: Keys, fields: Fields) -> Fields:
    """Qwen: off unless ``use_sliding_window``; then from layer ``max_window_layers`` on."""
    if keys.flag("use_sliding_window", False):
        return windows(before("max_window_layers", 28), default=4096)(keys, fields)
    keys.ignore("max_window_layers")
    types = keys.words("layer_types", length=fields["num_layers"])
    if types is not None and set(types) - {FULL}:
        keys.refuse("layer_types", "has windows although use_sliding_window is false")
    keys.ignore("sliding_window")
    return {}


def global_and_local(keys: Keys, fields: Fields) -> Fields:
    """GPT-Neo: ``attention_types`` [[[kinds], repeats], ...], written out in ``attention_layers``."""
    num_layers, window = fields["num_layers"], keys.size("window_size", 256)
    kinds = keys.words("attention_layers", length=num_layers)
    if kinds is None:
        kinds = _repeated(keys, num_layers)
    else:
        keys.ignore("attention_types")
    if kinds is None:
        kinds = ["local" if number % 2 else "global" for number in range(num_layers)]
    if len(kinds) != num_layers or set(kinds) - {"global", "local"}:
        keys.refuse("attention_types", f"must give {num_layers} layers, each global or local")
    return _window_fields(window, tuple(n for n, kind in enumerate(kinds) if kind == "global"), num_layers)


def chunks(keys: Keys, fields: Fields) -> Fields:
    """Llama 4: layers with rotary positions see their chunk of the sequence, which bounds them like a window."""
    num_layers = fields["num_layers"]
    interval = keys.size("no_rope_layer_interval", 4) or 4
    rotary = keys.bits("no_rope_layers", length=num_layers)
    if rotary is None:
        rotary = [bool((number + 1) % interval) for number in range(num_layers)]
    return windows(lambda _keys, number, _layers: not rotary[number], key="attention_chunk_size", default=8192)(
        keys, fields
    )


def sparse_steps(keys: Keys, fields: Fields) -> Fields:
    """Qwen-MoE: every ``decoder_sparse_step``th layer has experts, but those of ``mlp_only_layers``."""
    num_layers = fields["num_layers"]
    step = keys.size("decoder_sparse_step", 1) or 1
    dense = keys.numbers("mlp_only_layers", below=num_layers) or ()
    return _listed([n for n in range(num_layers) if n not in dense and (n + 1) % step == 0], num_layers)


def after_first(default: int) -> Derive:
    """DeepSeek: ``mlp_layer_types``, or all from ``first_k_dense_replace`` on that ``moe_layer_freq`` divides."""

    def derive(keys: Keys, fields: Fields) -> Fields:
        num_layers = fields["num_layers"]
        kinds = keys.words("mlp_layer_types", length=num_layers)
        if kinds is not None:
            if set(kinds) - {"dense", "sparse"}:
                keys.refuse("mlp_layer_types", "must be dense or sparse for each layer")
            keys.ignore("first_k_dense_replace", "moe_layer_freq")
            return _listed([number for number, kind in enumerate(kinds) if kind == "sparse"], num_layers)
        first = keys.count("first_k_dense_replace", default)
        every_nth = keys.size("moe_layer_freq", 1) or 1
        return _listed([n for n in range(first, num_layers) if n % every_nth == 0], num_layers)

    return derive


def interleaved(keys: Keys, fields: Fields) -> Fields:
    """Llama 4: ``moe_layers``, or every ``interleave_moe_layer_step``th layer."""
    num_layers = fields["num_layers"]
    step = keys.size("interleave_moe_layer_step", 1) or 1
    layers = keys.numbers("moe_layers", below=num_layers)
    return _listed(list(range(step - 1, num_layers, step)) if layers is None else list(layers), num_layers)


def between(keys: Keys, fields: Fields) -> Fields:
    """ERNIE 4.5: every ``moe_layer_interval``th layer from ``moe_layer_start_index`` to ``moe_layer_end_index``."""
    num_layers = fields["num_layers"]
    step = keys.size("moe_layer_interval", 1) or 1
    first = keys.count("moe_layer_start_index", 1)
    ends_at = keys.raw("moe_layer_end_index")
    last = num_layers - 1 if ends_at in (None, -1) else keys.count("moe_layer_end_index")
    return _listed([n for n in range(first, min(last + 1, num_layers)) if (n + 1) % step == 0], num_layers)


def latent(keys: Keys, fields: Fields) -> Fields:
    """MLA: head sizes are its own, and every head has a key and a value of its own, whatever the file says."""
    rope, nope = keys.need("qk_rope_head_dim"), keys.need("qk_nope_head_dim")
    keys.ignore("head_dim", "qk_head_dim", "num_key_value_heads")
    return {
        "head_size": rope + nope,
        "num_kv_heads": fields["num_heads"],
        "latent": LatentAttention(
            kv_latent_size=keys.need("kv_lora_rank"),
            rope_head_size=rope,
            value_head_size=keys.need("v_head_dim"),
            query_latent_size=keys.size("q_lora_rank"),
        ),
    }


def _listed(layers: list[int], num_layers: int) -> dict[str, Any]:
    """Say which layers have experts, in the shorter way where they are all but the first few."""
    first = layers[0] if layers else num_layers
    if layers and layers == list(range(first, num_layers)):
        return {"num_dense_layers_first": first}
    return {"layers": tuple(layers)}


def _window_fields(window: int | None, full: tuple[int, ...], num_layers: int) -> Fields:
    if window is None or len(full) == num_layers:
        return {"attention_window_tokens": None, "full_attention_layers": ()}
    return {"attention_window_tokens": window, "full_attention_layers": full}


def _repeated(keys: Keys, num_layers: int) -> list[str] | None:
    """Write a list of pairs out, but no further than one layer too many: repeats may be any number."""
    pairs = keys.raw("attention_types")
    if pairs is None:
        return None
    try:
        kinds = (str(kind) for kinds, repeats in pairs for each in repeat(kinds, repeats) for kind in each)
        return list(islice(kinds, num_layers + 1))
    except (TypeError, ValueError):
        keys.refuse("attention_types", "must be a list of pairs: a list of kinds, and how often it repeats")
