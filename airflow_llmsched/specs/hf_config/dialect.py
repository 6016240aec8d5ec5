"""What an architecture's row of the table of dialects may say, and how a file is read by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.domain.workload import ExpertShape, ModelShape
from airflow_llmsched.specs.fields import MAX_LAYERS
from airflow_llmsched.specs.hf_config.keys import Keys

Fields = Mapping[str, Any]
"""Fields of a ``ModelShape``, by name."""
Derive = Callable[[Keys, Fields], Fields]
"""What no table can say: reads further keys, given the fields so far, and returns fields to add or to replace."""

FLAGS = frozenset(name for name, kind in ModelShape.__annotations__.items() if kind == "bool")
_EXPERT_FLAGS = frozenset(name for name, kind in ExpertShape.__annotations__.items() if kind == "bool")
_COUNTS = frozenset({"num_predict_ahead_layers"})
_EXPERT_COUNTS = frozenset({"num_shared", "num_dense_layers_first"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How an architecture writes its experts. ``keys``, ``facts`` and ``defaults`` are as in :class:`Dialect`.

    A file without ``num_routed`` is a dense model where ``may_be_absent``. ``derive`` returns which layers have
    experts, and other fields of ``ExpertShape``.
    """

    keys: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    may_be_absent: bool = False
    derive: tuple[Derive, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one ``model_type`` writes a shape.

    ``keys`` maps our fields to its keys, ``facts`` are fields the architecture fixes, ``defaults`` stand for keys that
    the file leaves out (by our field; null is not left out). Where there is none, key-value heads default to the query
    heads, the head size to the hidden size over the heads, and the MLP to four times the hidden size where
    ``mlp_is_4h``. ``only`` lists structural keys that may only have the given values, because others would not fit a
    ``ModelShape``. ``aliases`` are other spellings of a key, ``unused`` are keys without effect, given the others.
    """

    keys: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    experts: Experts | None = None
    derive: tuple[Derive, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    tied_by_default: bool = False
    mlp_is_4h: bool = False

    def key_of(self, name: str) -> str:
        """Return the file's word for one of our fields."""
        return {**(self.experts.keys if self.experts else {}), **self.keys}.get(name, name)


def read_fields(keys: Keys, dialect: Dialect) -> Fields:
    """Return the fields of a ``ModelShape`` but for its name. Raises ``SpecError`` (see ``reader.read``)."""
    fields = dict(dialect.facts) | _told(keys, dialect.keys, dialect.defaults, FLAGS, _COUNTS)
    for key, allowed in dialect.only.items():
        keys.only(key, *allowed)
    keys.ignore(*dialect.unused)
    fields["tied_embeddings"] = keys.flag("tie_word_embeddings", dialect.tied_by_default)
    fields |= _sizes(keys, dialect, fields)
    for derive in dialect.derive:
        fields |= derive(keys, fields)
    if dialect.experts is not None:
        fields["experts"] = _experts(keys, dialect.experts, fields)
    if "ffn_hidden_size" not in fields:
        fields["ffn_hidden_size"] = _unused_width(fields) or keys.need(dialect.key_of("ffn_hidden_size"))
    if not fields.get("qk_norm"):
        # how the norms would look is a fact of the architecture, whether there are any a key of the file
        fields |= dict.fromkeys(("qk_norm_full_width", "qk_norm_has_bias"), False)
    return fields


def _unused_width(fields: Fields) -> int | None:
    """Return a width for a dense MLP that no layer has: that of an expert."""
    experts = fields.get("experts")
    if experts is None or experts.num_dense_layers_first or experts.layers is not None:
        return None
    return int(experts.expert_hidden_size)


def _told(
    keys: Keys, names: Mapping[str, str], defaults: Mapping[str, Any], flags: frozenset[str], counts: frozenset[str]
) -> dict[str, Any]:
    """Read each field that the file or its architecture gives a value."""
    told: dict[str, Any] = {}
    for name, key in names.items():
        value: int | None
        if name in flags:
            value = keys.flag(key, defaults.get(name, False))
        elif name in counts:
            value = keys.count(key, defaults.get(name, 0))
        else:
            value = keys.size(key, defaults.get(name))
        if value is not None:
            told[name] = value
    return told


def _sizes(keys: Keys, dialect: Dialect, fields: Fields) -> Fields:
    """Fill in sizes by their rules."""
    for name in ("num_layers", "hidden_size", "num_heads", "vocab_size"):
        if name not in fields:
            keys.need(dialect.key_of(name))
    if fields["num_layers"] > MAX_LAYERS:
        keys.refuse(dialect.key_of("num_layers"), f"must be at most {MAX_LAYERS}")
    hidden, heads = fields["hidden_size"], fields["num_heads"]
    sizes = {"num_kv_heads": fields.get("num_kv_heads", heads)}
    if "head_size" not in fields:
        if hidden % heads:
            hint = f"must divide {dialect.key_of('hidden_size')}={hidden} when no head size is given"
            keys.refuse(dialect.key_of("num_heads"), hint)
        sizes["head_size"] = hidden // heads
    if "ffn_hidden_size" not in fields and dialect.mlp_is_4h:
        sizes["ffn_hidden_size"] = 4 * hidden
    return sizes


def _experts(keys: Keys, experts: Experts, fields: Fields) -> ExpertShape | None:
    told = dict(experts.facts)
    told |= _told(keys, experts.keys, experts.defaults, _EXPERT_FLAGS, _EXPERT_COUNTS)
    for derive in experts.derive:
        told |= derive(keys, {**fields, **told})
    if experts.may_be_absent and "num_routed" not in told:
        return None
    for name in ("num_routed", "num_active", "expert_hidden_size"):
        if name not in told:
            keys.need(experts.keys[name])
    return None if told.get("layers") == () else ExpertShape(**told)
