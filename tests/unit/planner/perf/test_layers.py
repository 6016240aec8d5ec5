from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.workload import ExpertShape
from airflow_llmsched.planner.perf.layers import LayerKind, distinct_kinds, layer_kinds, num_dense_layers
from tests.support.models import LLAMA2_7B

EXPERTS = ExpertShape(num_routed=8, num_active=2, expert_hidden_size=16, num_dense_layers_first=2)


def test_all_layers_of_a_dense_model_are_of_one_kind() -> None:
    assert list(layer_kinds(LLAMA2_7B)) == [LayerKind()] * 32
    assert list(distinct_kinds(LLAMA2_7B)) == [LayerKind()]


def test_a_mixture_of_experts_may_begin_with_dense_layers() -> None:
    model = replace(LLAMA2_7B, num_layers=5, experts=EXPERTS)
    assert [kind.is_moe for kind in layer_kinds(model)] == [False, False, True, True, True]
    assert list(distinct_kinds(model)) == [LayerKind(), LayerKind(is_moe=True)]


def test_a_model_of_fewer_layers_than_its_dense_ones_is_dense() -> None:
    assert list(distinct_kinds(replace(LLAMA2_7B, num_layers=1, experts=EXPERTS))) == [LayerKind()]


def test_a_window_is_part_of_the_kind() -> None:
    windowed = replace(LLAMA2_7B, attention_window_tokens=4096)
    assert list(distinct_kinds(windowed)) == [LayerKind(window_tokens=4096)]


def test_some_layers_may_attend_to_the_start_and_others_to_an_encoder() -> None:
    model = replace(
        LLAMA2_7B, num_layers=4, attention_window_tokens=64, full_attention_layers=(1, 3), cross_attention_layers=(3,)
    )
    assert [kind.window_tokens for kind in layer_kinds(model)] == [64, None, 64, None]
    assert [kind.is_cross for kind in layer_kinds(model)] == [False, False, False, True]
    assert len(distinct_kinds(model)) == 3


def test_experts_may_be_in_listed_layers() -> None:
    experts = replace(EXPERTS, num_dense_layers_first=0, layers=(1, 3))
    model = replace(LLAMA2_7B, num_layers=4, experts=experts)
    assert [kind.is_moe for kind in layer_kinds(model)] == [False, True, False, True]
    assert num_dense_layers(model) == 2
    assert num_dense_layers(LLAMA2_7B) == 32
