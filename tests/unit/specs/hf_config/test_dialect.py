"""Fields are taken from facts, keys, defaults and rules, in that order of strength."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.dialect import Dialect, Experts, read_fields
from airflow_llmsched.specs.hf_config.keys import Keys

KEYS = {
    "num_layers": "layers", "hidden_size": "width", "num_heads": "heads", "num_kv_heads": "kv", "vocab_size": "vocab",
    "ffn_hidden_size": "ffn", "mlp_bias": "bias",
}  # fmt: skip
FILE: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "vocab": 100}


def fields_of(dialect: Dialect, **changes: Any) -> dict[str, Any]:
    return dict(read_fields(Keys({**FILE, **changes}, file="f"), dialect))


def test_sizes_that_neither_file_nor_architecture_gives_follow_from_the_others() -> None:
    fields = fields_of(Dialect(keys=KEYS, mlp_is_4h=True))
    assert (fields["num_kv_heads"], fields["head_size"], fields["ffn_hidden_size"]) == (4, 16, 256)


def test_a_default_stands_for_a_key_left_out_and_not_for_null() -> None:
    dialect = Dialect(keys=KEYS, defaults={"num_kv_heads": 2, "mlp_bias": True}, mlp_is_4h=True)
    assert (fields_of(dialect)["num_kv_heads"], fields_of(dialect)["mlp_bias"]) == (2, True)
    assert fields_of(dialect, kv=None)["num_kv_heads"] == 4
    assert fields_of(dialect, kv=1, bias=False)["num_kv_heads"] == 1


def test_a_file_without_experts_is_dense_only_where_the_architecture_allows_it() -> None:
    words = {"num_routed": "n", "num_active": "k", "expert_hidden_size": "w"}
    may = Dialect(keys=KEYS, experts=Experts(keys=words, may_be_absent=True), mlp_is_4h=True)
    assert fields_of(may)["experts"] is None
    with pytest.raises(SpecError, match="k: is missing"):
        fields_of(may, n=4)
    with pytest.raises(SpecError, match="n: is missing"):
        fields_of(Dialect(keys=KEYS, experts=Experts(keys=words), mlp_is_4h=True))


def test_a_missing_size_is_named_by_the_files_own_word() -> None:
    with pytest.raises(SpecError, match="ffn: is missing"):
        fields_of(Dialect(keys=KEYS))
    with pytest.raises(SpecError, match="heads = 5: must divide width=64"):
        fields_of(Dialect(keys=KEYS, mlp_is_4h=True), heads=5)


def test_the_width_of_a_dense_mlp_is_only_needed_where_a_layer_has_one() -> None:
    words = {"num_routed": "n", "num_active": "k", "expert_hidden_size": "w", "num_dense_layers_first": "first"}
    dialect = Dialect(keys=KEYS, experts=Experts(keys=words))
    assert fields_of(dialect, n=4, k=2, w=24)["ffn_hidden_size"] == 24
    with pytest.raises(SpecError, match="ffn: is missing"):
        fields_of(dialect, n=4, k=2, w=24, first=1)


def test_how_query_norms_look_is_forgotten_where_there_are_none() -> None:
    dialect = Dialect(keys=KEYS | {"qk_norm": "qkn"}, facts={"qk_norm_full_width": True}, mlp_is_4h=True)
    assert not fields_of(dialect)["qk_norm_full_width"]
    assert fields_of(dialect, qkn=True)["qk_norm_full_width"]
